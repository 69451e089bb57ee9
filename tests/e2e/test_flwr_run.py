"""`flwr run` on our own SuperLink: the run folder of `fedrecgel simulate`, or one line."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedrecgel import Result, prepare, simulate

pytest.importorskip("ray")
pytestmark = [pytest.mark.flower, pytest.mark.slow]
SETTINGS = {
    "preset": "paper",
    "rounds": 2,
    "fraction": 0.5,
    "embedding_dim": 4,
    "dtype": "float64",
    "evaluate_every": 1,
}


def test_a_run_leaves_what_simulate_leaves(link: Any, tmp_path: Path) -> None:
    data = prepare("synthetic", tmp_path / "data", users=60)
    ours = simulate(data, tmp_path / "ours", log="none", **SETTINGS)
    text, status = link.run(3, data=data.path, out=tmp_path / "theirs", wait=600.0, **SETTINGS)
    assert status == "finished:completed", text
    assert "3 nodes" in text
    theirs = Result.open(tmp_path / "theirs")
    assert {p.name for p in theirs.path.iterdir()} == {p.name for p in ours.path.iterdir()}
    for name in ("sampled.hr@10", "sampled.ndcg@10", "full.ndcg@10"):
        assert theirs.metric(name) == pytest.approx(ours.metric(name), abs=1e-6)
    heads = [json.loads((r.path / "config.json").read_text()) for r in (ours, theirs)]
    assert heads[0]["settings"] == heads[1]["settings"]
    assert heads[0]["data"] == heads[1]["data"]
    assert heads[1]["nodes"] == 3
    assert theirs.table().splitlines()[0] == ours.table().splitlines()[0]
    user = data.user_ids[0]
    assert [r.item for r in theirs.recommend(user)] == [r.item for r in ours.recommend(user)]


def test_missing_data_end_the_run_before_round_1_with_one_line(link: Any, tmp_path: Path) -> None:
    """U019: data are in no bundle; where they are is the node's to say."""
    text, status = link.run(2, data=tmp_path / "none", out=tmp_path / "run", rounds=1)
    assert status == "finished:failed"
    assert f"{tmp_path / 'none'} is not a prepared data set" in text
    assert "Traceback" not in text
    assert not (tmp_path / "run").exists()


def test_an_unknown_name_is_refused_before_anything_starts(link: Any) -> None:
    done = link.flwr("run", ".", "-c", "rouns=3")
    assert done.returncode != 0
    assert "Invalid run configuration" in done.stdout + done.stderr
