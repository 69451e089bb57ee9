"""Backend ray: the same numbers as in process, nothing left behind, no hanging."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fedrecgel import Result, simulate
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation import ray as backend
from fedrecgel.simulation.backends import Carrier

pytestmark = pytest.mark.flower
SETTINGS: dict[str, Any] = {
    "algorithm": "fedrecgel",
    "preset": "paper",
    "rounds": 3,
    "fraction": 0.5,
    "embedding_dim": 4,
    "dtype": "float64",
    "evaluate_every": 1,
    "log": "none",
}
PATIENCE = 600.0
"""Seconds for what starts Ray, beside other tests or on a busy machine."""
METRICS = ("sampled.hr@10", "sampled.ndcg@10", "full.hr@10", "full.ndcg@10")


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def leftovers() -> set[str]:
    """Folders whose process has ended; another run's, still going, is none of ours."""
    return {path.name for path in backend.abandoned_folders()}


def processes_of(session: int) -> str:
    command = ["ps", "-o", "args=", "-s", str(session)]
    return subprocess.run(command, capture_output=True, text=True).stdout


def losses(result: Result) -> list[float]:
    lines = (result.path / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def assert_same_numbers(one: Result, other: Result) -> None:
    for name in METRICS:
        assert one.metric(name) == pytest.approx(other.metric(name), abs=1e-6)
    assert losses(one) == pytest.approx(losses(other), abs=1e-6)


def test_without_ray_there_is_one_plain_line(
    monkeypatch: pytest.MonkeyPatch, small_data: Dataset, tmp_path: Path
) -> None:
    monkeypatch.setattr(backend.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'fedrecgel\[simulation\]'"):
        simulate(small_data, tmp_path / "run", backend="ray", **SETTINGS)
    assert not (tmp_path / "run").exists()
    assert simulate(small_data, tmp_path / "run", **SETTINGS).round <= 3


def test_processes_that_start_slowly_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, small_data: Dataset, tmp_path: Path
) -> None:
    """Ten minutes for the first answers: a minute is too short on a busy machine."""
    waits = []

    def start(self: Carrier, strategy: FedRecStrategy, *rest: Any) -> None:
        waits.append(strategy.wait)
        raise ConfigError("seen enough")

    monkeypatch.setattr(Carrier, "start", start)
    with pytest.raises(ConfigError, match="seen enough"):
        simulate(small_data, tmp_path / "run", backend="ray", **SETTINGS)
    assert waits == [600.0]


# Ray runs in processes of its own: it leaves open files behind, which pytest would report.
RUN = """
import sys
from fedrecgel.cli import main
from fedrecgel.simulation import ray
ray.usable_cores = lambda: 2
sys.exit(main(sys.argv[1:]))
"""


def test_no_cluster_at_the_address_is_one_line(small_data: Dataset, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    where = {"backend": "ray", "ray_address": "127.0.0.1:9"}
    with pytest.raises(ConfigError, match=r"no Ray cluster at 127\.0\.0\.1:9 .* ray start"):
        simulate(small_data, tmp_path / "run", **where, **SETTINGS)
    assert not (tmp_path / "run").exists()


FAILING = """
import sys
from fedrecgel.cli import main
from fedrecgel.client import app as client
from fedrecgel.simulation import ray, run

def failing(message, context):
    if message.metadata.message_type == "train":
        raise ZeroDivisionError("a defect of the client")
    return client.app(message, context)

ray.usable_cores = lambda: 2
run.app = failing
sys.exit(main(sys.argv[1:]))
"""


def command(script: str, data: Dataset, out: Path, **settings: Any) -> list[str]:
    values = {**SETTINGS, **settings}
    options = [f"--{name}={values.pop(name)}" for name in ("algorithm", "preset", "log")]
    options += ["--nodes=5", "--backend=ray", f"--data={data.path}", f"--out={out}"]
    options += [f"--set={name}={value}" for name, value in values.items()]
    return [sys.executable, "-c", script, "simulate", *options]


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("name", ["fedrecgel", "cofedrec"])
def test_ray_gives_the_numbers_of_the_in_process_run(
    small_data: Dataset, tmp_path: Path, name: str
) -> None:
    """One that sends sums, and one that sends each user's own and tables to single users."""
    before, own = leftovers(), {"algorithm": name}
    own |= {"item_lr": 0.01} if name == "cofedrec" else {}
    inside = simulate(small_data, tmp_path / "inside", nodes=1, **{**SETTINGS, **own})
    done = subprocess.run(
        command(RUN, small_data, tmp_path / "outside", log="text", **own),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "Ray: 2 actors of 1 CPU, 1 thread each" in done.stderr
    outside = Result.open(tmp_path / "outside")
    assert_same_numbers(inside, outside)
    assert outside.values["backend"] == "ray"
    assert outside.values["nodes"] == 5
    assert outside.values["failures"] == {}
    assert {path.name for path in outside.path.iterdir()} == {
        path.name for path in inside.path.iterdir()
    }
    user = small_data.user_ids[0]
    for one, other in zip(inside.recommend(user), outside.recommend(user), strict=True):
        assert one.item == other.item
        assert one.score == pytest.approx(other.score, abs=1e-6)
    assert leftovers() <= before


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
def test_a_failing_client_shows_one_traceback_and_ends_the_run(
    small_data: Dataset, tmp_path: Path
) -> None:
    done = subprocess.run(
        command(FAILING, small_data, tmp_path / "run", log="text"),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 2
    assert done.stderr.count("Traceback (most recent call last)") == 1
    assert "\nZeroDivisionError: a defect of the client\n" in done.stderr
    assert done.stderr.strip().splitlines()[-1].startswith("error: round 1:")


@pytest.mark.slow
@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("interrupts", [1, 2])
def test_ctrl_c_leaves_no_folder_and_no_process(
    small_data: Dataset, tmp_path: Path, interrupts: int
) -> None:
    before = leftovers()
    with subprocess.Popen(
        command(RUN, small_data, tmp_path / "run", rounds=100_000, log="text"),
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 2/"):
                break
        for _ in range(interrupts):
            os.kill(process.pid, signal.SIGINT)
            time.sleep(0.2)
        text = process.stderr.read()
    assert process.returncode == 130, text
    assert leftovers() <= before
    # Ray's helpers end a moment after the process that they belong to.
    deadline = time.monotonic() + PATIENCE
    while processes_of(process.pid) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert processes_of(process.pid) == ""
