"""A run that is killed at any moment and resumed ends as if nothing had happened."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fedrecgel import prepare
from fedrecgel.client.app import app
from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import RunError, Stopped
from fedrecgel.server.checkpoint import FOLDER, Checkpoint
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.grid import InProcessGrid

SETTINGS = {
    "dtype": "float64",
    "scorer": "dot",
    "embedding-dim": 8,
    "init-std": 0.1,
    "server-lr": 0.02,
    "rounds": 24,
    "fraction": 0.3,
    "evaluate-every": 3,
}
LONG = 400


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepare("synthetic", tmp_path_factory.mktemp("data") / "d", users=100, items=150)


def strategy(
    run: Path, say: Callable[[str], None] | None = None, **changes: object
) -> FedRecStrategy:
    config = make_config("fedrecgel", {**SETTINGS, **changes})
    return FedRecStrategy(config, run_folder=run, resume=True, say=say)


def grid(data: Dataset, run: Path, nodes: int = 3) -> InProcessGrid:
    configs = [{"partition-id": n, "num-partitions": nodes} for n in range(nodes)]
    return InProcessGrid(app, configs, {"data": str(data.path), "state": str(run / "private")})


def finish(data: Dataset, run: Path, **changes: Any) -> tuple[dict, list, dict]:
    made = strategy(run, **changes)
    made.start(grid(data, run))
    assert made.outcome is not None
    lines = [
        {k: v for k, v in line.items() if "seconds" not in k} for line in made.outcome.history.lines
    ]
    test = {r: sums.values() for r, sums in made.outcome.test.items()}
    return made.outcome.best.shared, lines, test


def same(a: tuple[dict, list, dict], b: tuple[dict, list, dict]) -> None:
    for name, value in a[0].items():
        torch.testing.assert_close(value, b[0][name], rtol=0, atol=1e-9)
    assert a[1:] == b[1:]


def killed(data: Dataset, run: Path, seconds: float) -> bool:
    """Run in a child process until it saved something and ``seconds`` more, then kill it.

    False if it came to its end by itself.
    """
    before, child = saved(run), os.fork()
    if child == 0:
        try:
            finish(data, run, rounds=LONG)
        finally:
            os._exit(1)
    for _ in range(2000):
        if saved(run) != before or os.waitpid(child, os.WNOHANG)[0]:
            break
        time.sleep(0.005)
    else:
        pytest.fail("no checkpoint in ten seconds")
    time.sleep(seconds)
    try:
        os.kill(child, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    except ChildProcessError:
        return False


def saved(run: Path) -> list[str]:
    return sorted(path.name for path in (run / FOLDER).glob("0*"))


def test_a_run_killed_fifty_times_ends_as_an_unbroken_one(data: Dataset, tmp_path: Path) -> None:
    torch.set_num_threads(1)  # a forked child must not wait for its parent's threads
    expected = finish(data, tmp_path / "whole", rounds=LONG)
    run, rng = tmp_path / "killed", random.Random(7)
    for _ in range(50):
        assert killed(data, run, rng.uniform(0.0, 0.05)), "the run is too short for 50 kills"
    same(finish(data, run, rounds=LONG), expected)


@pytest.mark.flower
def test_a_damaged_checkpoint_is_passed_over(data: Dataset, tmp_path: Path) -> None:
    expected = finish(data, tmp_path / "whole")
    run = tmp_path / "run"
    asked = iter([False] * 13 + [True])
    stopped = strategy(run)
    stopped.stop = lambda: next(asked)
    with pytest.raises(Stopped, match="round 14"):
        stopped.start(grid(data, run))
    assert sorted(path.name for path in (run / FOLDER).iterdir()) == ["00000012", "00000014"]
    tensors = run / FOLDER / "00000014" / "state.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-100])
    said: list[str] = []
    same(finish(data, run, say=said.append), expected)
    assert said == [f"checkpoint {tensors.parent} is damaged; the run goes on from round 12"]


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_as_it_is(
    data: Dataset, tmp_path: Path
) -> None:
    finish(data, tmp_path, rounds=6)
    paths = sorted((tmp_path / FOLDER).iterdir())
    assert [path.name for path in paths] == ["00000003", "00000006"]
    (paths[0] / "state.safetensors").unlink()
    (paths[1] / "state.json").write_text("{")
    with pytest.raises(RunError, match="00000006 is damaged and there is no other"):
        finish(data, tmp_path)
    assert [len(list(path.iterdir())) for path in paths] == [1, 2]


@pytest.mark.flower
def test_a_run_may_be_made_longer_but_not_otherwise(data: Dataset, tmp_path: Path) -> None:
    finish(data, tmp_path, rounds=6)
    finish(data, tmp_path, rounds=9)
    assert Checkpoint(tmp_path / FOLDER / "00000009").round == 9
    with pytest.raises(RunError, match=r"'server-lr' was 0\.02 when it began and is 0\.5 now"):
        finish(data, tmp_path, **{"server-lr": 0.5})
    with pytest.raises(RunError, match="its sites differ"):
        strategy(tmp_path).start(grid(data, tmp_path, nodes=2))
    other = prepare("synthetic", tmp_path / "other", users=100, items=150, seed=1)
    with pytest.raises(RunError, match="its catalogue differ"):
        strategy(tmp_path).start(grid(other, tmp_path))


def test_another_format_is_refused_by_name(data: Dataset, tmp_path: Path) -> None:
    finish(data, tmp_path, rounds=3)
    path = tmp_path / FOLDER / "00000003" / "state.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))
    with pytest.raises(RunError, match="checkpoint format 99, this version reads 2"):
        finish(data, tmp_path)


@pytest.mark.flower
def test_training_stops_when_validation_stalls(data: Dataset, tmp_path: Path) -> None:
    made = strategy(tmp_path, rounds=200, patience=2, **{"evaluate-every": 1, "server-lr": 0.5})
    made.start(grid(data, tmp_path))
    assert made.outcome is not None
    assert made.outcome.rounds == made.outcome.best.round + 2 < 200
    assert made.outcome.history.lines[-1]["round"] == made.outcome.rounds
