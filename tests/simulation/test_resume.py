"""A run folder that is gone on with: nothing is lost, and nothing wrong is written down."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from fedrecgel import Result, simulate
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import RunError

SETTINGS: dict[str, Any] = {
    "preset": "paper",
    "scorer": "dot",
    "embedding_dim": 4,
    "init_std": 0.1,
    "server_lr": 0.05,
    "rounds": 6,
    "evaluate_every": 2,
    "fraction": 0.3,
    "nodes": 3,
    "log": "none",
}


@pytest.fixture(scope="module")
def finished(small_data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(small_data, tmp_path_factory.mktemp("finished") / "run", **SETTINGS).path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def resume(data: Dataset, run: Path, **more: Any) -> Result:
    return simulate(data, run, resume=True, log="none", **more)


def test_a_run_killed_after_its_last_checkpoint_gets_its_last_line(
    small_data: Dataset, run: Path
) -> None:
    path = run / "metrics.jsonl"
    whole = path.read_text()
    path.write_text(whole[: whole.rindex("\n", 0, -1) + 20])  # killed while it was written
    (run / "result.json").unlink()
    resume(small_data, run)
    assert path.read_text() == whole


def test_the_result_says_how_many_rounds_were_trained(small_data: Dataset, run: Path) -> None:
    assert resume(small_data, run, rounds=4).values["round"]["trained"] == 6
    stalled = {**SETTINGS, "rounds": 200, "evaluate_every": 1, "patience": 2, "server_lr": 0.5}
    result = simulate(small_data, run.parent / "stalled", **stalled)
    assert result.values["round"]["trained"] == result.round + 2 < 200


def test_another_algorithm_or_preset_is_refused(small_data: Dataset, run: Path) -> None:
    before = (run / "config.json").read_text()
    with pytest.raises(RunError, match="is a run of fedrecgel, not of fedncf"):
        resume(small_data, run, algorithm="fedncf")
    with pytest.raises(RunError, match="began with preset paper, not tuned"):
        resume(small_data, run, preset="tuned")
    assert (run / "config.json").read_text() == before
    resume(small_data, run, algorithm="fedrecgel", preset="paper")


def test_a_run_without_a_whole_checkpoint_is_refused_in_one_line(
    small_data: Dataset, run: Path
) -> None:
    for path in (run / "checkpoints").glob("*/state.safetensors"):
        path.write_bytes(b"")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(RunError, match="is damaged and there is no other: the run cannot go on"):
        resume(small_data, run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    simulate(small_data, run, overwrite=True, **SETTINGS)


def test_a_checkpoint_without_all_its_parts_is_passed_over(small_data: Dataset, run: Path) -> None:
    metrics = (run / "metrics.jsonl").read_text().splitlines()
    path = run / "checkpoints" / "00000006" / "state.json"
    document = json.loads(path.read_text())
    del document["norms"]
    path.write_text(json.dumps(document))
    resume(small_data, run)
    again = (run / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in again] == [
        json.loads(line)["loss"] for line in metrics
    ]
