"""Whole comparisons on 24 users; each starts processes, so they are few and shared."""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fedrecgel.cli import main
from fedrecgel.common.algorithms import registry
from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.common.errors import ConfigError, FedRecError, RunError
from fedrecgel.simulation.compare import work
from fedrecgel.simulation.compare.plan import Cell
from fedrecgel.simulation.compare.report import Comparison
from fedrecgel.simulation.compare.store import CELL, HISTORY, RANKS, Outcome, Store
from fedrecgel.simulation.compare.study import compare
from fedrecgel.simulation.compare.work import make, score

ASKED = {
    "algorithms": ["fedrecgel", "fedncf"],
    "references": ["ease"],
    "seeds": 2,
    "budget": 2,
    "workers": 1,
    "log": "none",
    "rounds": 4,
    "evaluate_every": 2,
    "fraction": 0.5,
    "fedncf.device": "abacus",  # fails in every cell, and in nobody else's
}


@pytest.fixture(scope="module")
def made(small_data, tmp_path_factory):
    out = tmp_path_factory.mktemp("compare") / "out"
    return compare(small_data.path, out, **ASKED), out


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made[1], tmp_path / "out")
    return tmp_path / "out"


def stamps(out):
    return {path.parent.name: path.stat().st_mtime_ns for path in out.glob(f"cells/*/{CELL}")}


def test_the_table_has_every_row_and_the_failed_ones_line(made):
    comparison, out = made
    best = comparison.row("memory", "fedrecgel")
    assert (best["status"], best["seeds"], len(best["trials"])) == ("done", [0, 1], 2)
    assert best["evaluated"] == best["eligible"] == 24
    assert best["metrics"]["full.ndcg@10"]["low"] < best["metrics"]["full.ndcg@10"]["mean"]
    assert [point[0] for point in best["curve"]] == [2, 4]
    assert best["bytes_down"] > best["bytes_up"] > 0
    assert 0 < best["cpu_per_round"] < 10
    failed = comparison.row("memory", "fedncf")
    assert failed["status"] == "failed"
    assert "abacus" in failed["notes"][0]
    assert "fedncf" in comparison.table()
    assert comparison.row("memory", "popularity")["kind"] == "reference"
    files = {path.name for path in out.iterdir()}
    assert files >= {f"comparison.{e}" for e in ("json", "txt", "csv", "tex", "html")}
    assert {"accuracy.png", "curves.png"} <= files
    assert Comparison.open(out).values == json.loads(json.dumps(comparison.values))


def test_exports_hold_no_user_and_no_item(made, small_data):
    text = "".join(path.read_text() for path in made[1].glob("comparison.*"))
    assert not any(str(user) in text for user in small_data.user_ids)


def test_trials_leave_nothing_of_the_test_items(made):  # U067
    for folder in made[1].glob("cells/*-trial-*"):
        assert {path.name for path in folder.iterdir()} <= {CELL, "metrics.jsonl"}
        assert '"test"' not in "".join(path.read_text() for path in folder.iterdir())


def test_nothing_is_made_twice_and_another_seed_adds_its_own_cells(copied, small_data):
    before = stamps(copied)
    asked = {**ASKED, "algorithms": ["fedrecgel"]}
    del asked["fedncf.device"]
    more = compare(small_data.path, copied, **{**asked, "seeds": 3})
    after = stamps(copied)
    assert {key: after[key] for key in before} == before
    assert [key.split("-")[1:3] for key in set(after) - set(before)] == [["fedrecgel", "seed"]]
    assert more.row("memory", "fedrecgel")["seeds"] == [0, 1, 2]


def test_the_table_alone_shows_what_is_missing(made, copied, small_data):
    asked = {**ASKED, "workers": 0}
    again = compare(small_data.path, copied, **asked)
    assert again.values["data"] == made[0].values["data"]
    gone = sorted(copied.glob("cells/*-fedrecgel-seed-*"))[0]
    shutil.rmtree(gone)
    partial = compare(small_data.path, copied, **asked).row("memory", "fedrecgel")
    assert partial["status"] == "partial"
    assert len(partial["seeds"]) == 1
    assert any("not made yet" in note for note in partial["notes"])


def test_the_numbers_are_those_of_a_run_alone(made, small_data, tmp_path):
    from fedrecgel.simulation.run import simulate

    row = made[0].row("memory", "fedrecgel")
    settings = {name.replace("-", "_"): value for name, value in row["settings"].items()}
    run = simulate(small_data, tmp_path / "run", preset="paper", log="none", seed=1, **settings)
    for name in ("sampled.hr@10", "full.ndcg@10"):
        assert row["metrics"][name]["seeds"][1] == pytest.approx(run.metric(name), abs=1e-12)


COMMAND = ["--algorithms", "fedncf", "--references", "none", "--seeds", "1", "--budget", "1"]
COMMAND += ["--workers", "1", "--set", "engine=loop"]


def test_a_killed_comparison_goes_on_and_leaves_no_process_behind(small_data, tmp_path):
    out = tmp_path / "out"
    command = ["compare", "--data", str(small_data.path), "--out", str(out), *COMMAND]
    command += ["--rounds", "40", "--set", "evaluate-every=2", "--log", "none", "--json"]
    script = "import sys; from fedrecgel.cli import main; sys.exit(main(sys.argv[1:]))"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([sys.executable, "-c", script, *command], **quiet) as process:
        wait_for(lambda: evaluated(out) >= 2)  # so the first evaluation's checkpoint is there
        (child,) = children(process.pid)
        process.send_signal(signal.SIGKILL)
    wait_for(lambda: gone(child))
    (popularity,) = stamps(out).items()
    (half,) = out.glob("cells/*.part")
    first = (half / "metrics.jsonl").read_text().splitlines()[0]
    assert main(command) == 0
    assert popularity in stamps(out).items()
    assert not list(out.glob("cells/*.part"))
    row = Comparison.open(out).row("memory", "fedncf")
    assert (row["status"], row["seeds"]) == ("done", [0])
    # The round was made once: a second time it would have taken other seconds.
    (history,) = out.glob("cells/*-seed-*/metrics.jsonl")
    lines = history.read_text().splitlines()
    assert lines[0] == first
    assert len(lines) == 20


def gone(process: str) -> bool:
    """Whether a process has ended; in a container perhaps nobody collects it."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def evaluated(out: Path) -> int:
    files = list(out.glob("cells/*.part/metrics.jsonl"))
    return len(files[0].read_text().splitlines()) if files else 0


def children(process: int) -> list[str]:
    return Path(f"/proc/{process}/task/{process}/children").read_text().split()


def wait_for(condition, seconds=180.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_what_takes_too_long_is_marked_with_the_estimate_and_made_given_more_time(
    small_data, tmp_path, capsys
):
    command = ["compare", "--data", str(small_data.path), "--out", str(tmp_path / "out"), *COMMAND]
    command += ["--log", "text"]
    assert main([*command, "--rounds", "20000", "--time-limit", "3"]) == 0
    printed = capsys.readouterr()
    row = Comparison.open(tmp_path / "out").row("memory", "fedncf")
    assert row["status"] == "infeasible"
    assert "s a round x 20000 rounds = " in row["notes"][0]
    assert row["notes"][0] in printed.out.replace("fedncf: ", "")
    # The same limit is not tried again, so this takes no time; without one it would be.
    assert main([*command, "--rounds", "20000", "--time-limit", "3"]) == 0
    assert "[" not in capsys.readouterr().err


def test_settings_too_slow_for_a_seed_are_infeasible_in_their_short_trial(
    small_data, tmp_path, capsys
):
    command = ["compare", "--data", str(small_data.path), "--out", str(tmp_path / "out")]
    command += ["--algorithms", "fedncf", "--references", "none", "--seeds", "1", "--budget", "2"]
    command += ["--trial-rounds", "400", "--rounds", "1000000", "--time-limit", "20"]
    assert main([*command, "--workers", "1", "--log", "none"]) == 0
    row = Comparison.open(tmp_path / "out").row("memory", "fedncf")
    assert row["status"] == "infeasible"
    assert row["notes"][0].startswith("trial 1 infeasible: ")
    assert "s a round x 1000000 rounds = " in row["notes"][0]


def test_a_trial_is_judged_by_the_runs_that_are_asked_for_now(small_data, tmp_path):
    """A trial's cell is the same for runs of any length, what is said of it is not."""

    def row(rounds, out):
        asked = {**ASKED, "algorithms": ["fedncf"], "references": [], "seeds": 1, "rounds": rounds}
        del asked["fedncf.device"]
        made = compare(small_data.path, out, trial_rounds=4, time_limit=30.0, **asked)
        return made.row("memory", "fedncf")

    first = row(10_000_000, tmp_path / "long-first")
    assert (first["status"], {trial["status"] for trial in first["trials"]}) == (
        "infeasible",
        {"infeasible"},
    )
    assert row(4, tmp_path / "long-first")["status"] == "done"
    assert row(4, tmp_path / "short-first")["status"] == "done"
    again = row(10_000_000, tmp_path / "short-first")
    assert (again["status"], {trial["status"] for trial in again["trials"]}) == (
        "infeasible",
        {"infeasible"},
    )
    assert "s a round x 10000000 rounds = " in again["notes"][0]


def test_a_grid_smaller_than_the_budget_is_said(small_data, tmp_path):
    asked = {"algorithms": ["fedncf"], "references": [], "seeds": 1, "workers": 0, "log": "none"}
    row = compare(small_data.path, tmp_path / "out", budget=999, **asked).row("memory", "fedncf")
    assert (
        row["notes"][-1]
        == f"its grid has {len(row['trials'])} rows of settings, fewer than the budget"
    )


# --- without processes


def test_an_error_of_a_cell_is_its_outcome(small_data, tmp_path, monkeypatch):
    store, cell = Store.open(tmp_path), Cell("seed", "fedncf", "memory", small_data.hash)
    for error, line in (
        (RunError("no space left"), "no space left"),
        (ZeroDivisionError("division by zero\nmore"), "ZeroDivisionError: division by zero"),
        (MemoryError(), "out of memory"),
    ):

        def fail(*arguments, error=error, **settings):
            raise error

        monkeypatch.setattr(work, "simulate", fail)
        made = make(cell, small_data, store, lambda line: None)
        assert made == store.read(cell) == Outcome("failed", line)


def test_a_reference_that_needs_what_the_data_lack_is_infeasible(on_disk, tmp_path):
    data = on_disk(make_dataset([[0, 1], [2, 3]], [6, 7], [4, 5], num_items=8))
    store = Store.open(tmp_path / "out")
    outcome = make(Cell.reference(data, "recent"), data, store, lambda line: None)
    assert outcome.status == "infeasible"
    assert "to read times from" in outcome.line


def test_what_does_not_fit_is_infeasible_with_its_estimate_and_made_once_it_fits(
    small_data, tmp_path, monkeypatch
):
    """GPFedRec's server keeps a table of each user, here of more bytes than the limit of one."""
    limits = {"memory-limit": 1e-9}
    cell = Cell("seed", "gpfedrec", "memory", small_data.hash, limits=limits)
    outcome = make(cell, small_data, Store.open(tmp_path), lambda line: None)
    assert outcome == Store.open(tmp_path).read(cell)
    assert outcome.status == "infeasible"
    assert "the server of gpfedrec would keep" in outcome.line
    command = ["compare", "--data", str(small_data.path), "--out", str(tmp_path / "out")]
    command += ["--algorithms", "gpfedrec", "--references", "none", "--seeds", "1", "--budget", "1"]
    command += ["--rounds", "1", "--workers", "1", "--set", "evaluate-every=1", "--set"]
    assert main([*command, "memory-limit=1e-9"]) == 0
    row = Comparison.open(tmp_path / "out").row("memory", "gpfedrec")
    assert row["status"] == "infeasible"
    assert main([*command, "memory-limit=4"]) == 0
    row = Comparison.open(tmp_path / "out").row("memory", "gpfedrec")
    assert row["status"] == "done"


def cell_of(out, name, kind):
    """The first such cell of a finished comparison, and its store."""
    folder = sorted(out.glob(f"cells/memory-{name}-{kind}-*"))[0]
    told = json.loads((folder / CELL).read_text())
    return Cell(**told["cell"]), Store(out / "cells"), folder


def without_result(told):
    return {**told, "values": {}}


@pytest.mark.parametrize(
    ("name", "kind", "damage"),
    [
        ("fedrecgel", "trial", lambda path: (path / CELL).write_text('{"format": 1')),
        ("fedrecgel", "trial", lambda path: (path / CELL).write_text('"format"')),
        ("fedrecgel", "trial", lambda path: (path / HISTORY).unlink()),
        ("fedrecgel", "trial", lambda path: (path / HISTORY).write_text("what?\n")),
        ("fedrecgel", "trial", lambda path: (path / HISTORY).write_text('{"round": 4}\n')),
        ("fedrecgel", "seed", lambda path: (path / HISTORY).write_bytes(b"\xff\xfe\x00")),
        ("fedrecgel", "seed", lambda path: (path / RANKS).unlink()),
        ("fedrecgel", "seed", lambda path: (path / RANKS).write_bytes(b"numpy")),
        ("fedrecgel", "seed", lambda path: np.save(path / RANKS, np.arange(7))),
        ("ease", "reference", lambda path: np.save(path / RANKS, np.zeros((3, 5), np.int32))),
        (
            "ease",
            "reference",
            lambda path: (path / CELL).write_text(
                json.dumps(without_result(json.loads((path / CELL).read_text())))
            ),
        ),
    ],
)
def test_a_cell_of_which_any_file_is_damaged_is_as_good_as_none(copied, name, kind, damage):
    cell, store, folder = cell_of(copied, name, kind)
    assert store.read(cell).status == "done"
    damage(folder)
    assert store.read(cell) is None


def test_a_damaged_trial_is_made_again_and_the_table_is_the_same(made, copied, small_data):
    for path in copied.glob(f"cells/memory-fedrecgel-trial-*/{HISTORY}"):
        path.unlink()
    again = compare(small_data.path, copied, **ASKED).row("memory", "fedrecgel")
    assert again["settings"] == made[0].row("memory", "fedrecgel")["settings"]
    assert again["metrics"] == made[0].row("memory", "fedrecgel")["metrics"]


def test_a_trials_score_is_the_best_mean_of_three_evaluations_in_a_row():
    def lines(*values):
        return [
            {"round": n, "validation": {"full": {"ndcg@10": {"value": value}}}}
            for n, value in enumerate(values)
        ]

    assert score(lines(0.1, 0.9, 0.2, 0.6, 0.7), "full.ndcg@10") == pytest.approx(1.7 / 3)
    assert score(lines(0.1, 0.3), "full.ndcg@10") == pytest.approx(0.2)
    assert score([], "full.ndcg@10") is None


def test_two_comparisons_at_once_in_a_folder_are_refused(small_data, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    with (Store.open(tmp_path).folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunError, match="another comparison is at work"):
            compare(small_data.path, tmp_path, algorithms=["fedncf"])
        # Who only looks at what is there so far may.
        seen = compare(small_data.path, tmp_path, algorithms=["fedncf"], workers=0, log="none")
        assert seen.row("memory", "fedncf")["status"] == "missing"


def test_data_without_validation_items_cannot_be_tuned_on(on_disk, tmp_path):
    data = on_disk(make_dataset([[0, 1], [2, 3]], [-1, -1], [4, 5], num_items=8))
    with pytest.raises(ConfigError, match="--budget 1"):
        compare(data.path, tmp_path / "out")


NINTH = """
from dataclasses import dataclass
from typing import ClassVar
from fedrecgel.common.algorithms.registry import register
from fedrecgel.common.algorithms.fedmf import FedMF

@dataclass(frozen=True, kw_only=True)
class NinthConfig(FedMF.config_class):
    algorithm: ClassVar[str] = "ninth"

@register
class Ninth(FedMF):
    name: ClassVar[str] = "ninth"
    config_class: ClassVar[type[NinthConfig]] = NinthConfig
"""


def test_an_algorithm_that_a_program_registers_is_a_row_in_other_processes(
    small_data, tmp_path, monkeypatch
):
    (tmp_path / "ninth.py").write_text(NINTH)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "ALGORITHMS", dict(registry.ALGORITHMS))
    importlib.import_module("ninth")
    asked = {**ASKED, "algorithms": ["ninth"], "references": [], "budget": 1, "seeds": 1}
    del asked["fedncf.device"]
    made = compare(small_data.path, tmp_path / "out", **asked)
    assert made.row("memory", "ninth")["status"] == "done"
    assert registry.all_names()[-1] == "ninth"

    monkeypatch.setattr(registry.ALGORITHMS["ninth"], "__module__", "__main__")
    with pytest.raises(ConfigError, match="module of its own"):
        compare(small_data.path, tmp_path / "out", **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {"seeds": 0},
        {"budget": 0},
        {"workers": -1},
        {"time_limit": 0.0},
        {"time_limit": float("inf")},
        {"trial_rounds": -3, "budget": 1},
        {"references": ["best"]},
        {".item-lr": 1},
    ],
)
def test_what_cannot_be_asked_for_is_refused(asked, small_data, tmp_path):
    with pytest.raises(FedRecError):
        compare(small_data.path, tmp_path / "out", **asked)
    assert np.sum([path.is_file() for path in tmp_path.rglob("*")]) == 0
    assert os.listdir(tmp_path) == []
