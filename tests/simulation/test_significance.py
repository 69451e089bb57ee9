import json

import numpy as np
import pytest

from fedrecgel.cli import main
from fedrecgel.common.errors import RunError
from fedrecgel.simulation.significance import compare_runs, difference_table

USERS = 60


@pytest.fixture
def run(tmp_path):
    """Return a maker of run folders with given ranks of the test items."""

    def make(name, greater, data="a" * 64, finished=True):
        folder = tmp_path / name
        (folder / "private").mkdir(parents=True)
        head = {"format": 1, "data": {"name": "made", "hash": data}}
        (folder / "config.json").write_text(json.dumps(head))
        if finished:
            (folder / "result.json").write_text("{}")
        ranks = np.full((len(greater), 14), -1)
        ranks[:, [0, 2]] = np.array(greater)[:, None]
        ranks[:, [1, 3]] = np.where(np.array(greater) < 0, -1, 0)[:, None]
        np.save(folder / "private" / "ranks.npy", ranks)
        return folder

    return make


def test_a_run_that_is_better_for_some_users_and_worse_for_none(run):
    base = run("base", [20] * USERS)
    better = run("better", [0] * 15 + [20] * (USERS - 15))
    report = compare_runs(base, [better], ["hr@10", "mrr@10"])
    cell = report["runs"][0]["full"]["hr@10"]
    assert (cell["base"], cell["run"], cell["value"]) == (0, 0.25, 0.25)
    assert cell["changed"] == cell["better"] == 0.25
    assert cell["p"] == cell["p_holm"] < 0.001
    assert 0.1 < cell["low"] < 0.25 < cell["high"] < 0.4
    assert report["users"] == USERS


def test_a_run_is_not_different_from_itself(run):
    base = run("base", list(range(USERS)))
    cell = compare_runs(base, [base])["runs"][0]["sampled"]["ndcg@10"]
    assert (cell["value"], cell["changed"], cell["p"]) == (0, 0, 1)


def test_more_runs_need_more_evidence(run):
    base = run("base", [20] * USERS)
    slightly = run("slightly", [0] * 6 + [20] * (USERS - 6))
    same = [run(f"same{n}", [20] * USERS) for n in range(2)]
    alone = compare_runs(base, [slightly])["runs"][0]["full"]["hr@10"]
    among = compare_runs(base, [slightly, *same])["runs"][0]["full"]["hr@10"]
    assert alone["p"] == among["p"] == alone["p_holm"]
    assert among["p_holm"] == pytest.approx(3 * alone["p"])


def test_runs_on_other_data_are_refused(run):
    base, other = run("base", [0, 1]), run("other", [0, 1], data="b" * 64)
    with pytest.raises(RunError, match="other is a run on other data"):
        compare_runs(base, [other])


def test_runs_that_measured_other_users_are_refused(run):
    base, other = run("base", [0, 1, 2]), run("other", [0, -1, 2])
    with pytest.raises(RunError, match=r"measured 2 users, .*base 3, not the same ones"):
        compare_runs(base, [other])


def test_a_run_without_ranks_or_unfinished_is_refused_in_one_line(run, tmp_path, capsys):
    base, other = run("base", [0, 1]), run("other", [0, 1])
    (other / "private" / "ranks.npy").unlink()
    with pytest.raises(RunError, match="holds no ranks of users"):
        compare_runs(base, [other])
    unfinished = run("unfinished", [0, 1], finished=False)
    assert main(["difference", str(base), str(unfinished)]) == 2
    assert "the run did not finish" in capsys.readouterr().err
    assert main(["difference", str(base), str(tmp_path / "nowhere")]) == 2
    assert "is not a run folder" in capsys.readouterr().err


def test_the_command_prints_a_table_or_json(run, capsys):
    base, better = run("base", [20] * USERS), run("better", [0] * USERS)
    assert main(["difference", str(base), str(better), "--k", "5", "--metrics", "hr,map"]) == 0
    text = capsys.readouterr().out
    assert "full map@5" in text
    assert "Holm" not in text
    assert max(len(line) for line in text.splitlines() if "/" not in line) <= 100
    assert main(["difference", str(base), str(better), str(base), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [entry["run"] for entry in report["runs"]] == [str(better), str(base)]
    assert "Holm" in difference_table(report)
    assert main(["difference", str(base), str(better), "--metrics", "auc"]) == 2
    assert "unknown metric 'auc@10'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["difference", str(base), str(better), "--k", "0"])
