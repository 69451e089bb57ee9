"""The ServerApp: run-config in, run folder out, whatever the nodes' data."""

import json
import logging
import runpy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, RecordDict

from fedrecgel.app import app
from fedrecgel.client.app import app as client
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.prepare import prepare
from fedrecgel.common.errors import ConfigError, FederationError, FedRecError
from fedrecgel.server.gathering import QUIET, wait_for_nodes
from fedrecgel.simulation.grid import InProcessGrid
from fedrecgel.simulation.result import Result

pytestmark = pytest.mark.flower
ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DEFAULTS = PROJECT["tool"]["flwr"]["app"]["config"]
SMALL = {"preset": "paper", "rounds": 2, "embedding-dim": 4, "evaluate-every": 1, "fraction": 1}

Run = Callable[..., Path]


@pytest.fixture
def run(small_data: Dataset, tmp_path: Path) -> Run:
    """Run the app in process, as Flower would with these overrides; give the run folder."""

    def start(node: dict[str, Any] | None = None, **overrides: Any) -> Path:
        out = tmp_path / "run"
        given = {"data": str(small_data.path), "out": str(out), **SMALL}
        given |= {name.replace("_", "-"): value for name, value in overrides.items()}
        assert given.keys() <= DEFAULTS.keys()
        run_config = {**DEFAULTS, **given}
        configs = [{"partition-id": p, "num-partitions": 2, **(node or {})} for p in range(2)]
        app(InProcessGrid(client, configs, run_config), Context(1, 0, {}, RecordDict(), run_config))
        return out

    return start


def test_run_config_names_every_setting_and_option() -> None:
    script = runpy.run_path(str(ROOT / ".ci" / "app_config.py"))
    assert script["written"]() == script["table"](), "run: python .ci/app_config.py --write"


def test_a_run_can_be_opened_and_used(run: Run, small_data: Dataset) -> None:
    result = Result.open(run())
    assert result.values["nodes"] == 2
    assert result.values["settings"]["rounds"] == 2
    assert result.values["settings"]["embedding-dim"] == 4
    assert result.values["backend"] == "flower"
    assert len(result.recommend(small_data.user_ids[0])) == 10
    assert (result.path / "curves.png").is_file()


def test_a_value_not_given_is_the_presets(run: Run) -> None:
    result = Result.open(run(preset="tuned"))
    assert result.values["settings"]["scorer"] == "dot"
    assert result.values["settings"]["rounds"] == 2


def test_nodes_with_data_of_their_own_leave_a_result_without_what_needs_data(
    run: Run, small_data: Dataset, tmp_path: Path
) -> None:
    node = {"data": str(small_data.path), "state": str(tmp_path / "state")}
    result = Result.open(run(node, data=""))
    assert result.metric("full.hr@10") >= 0
    assert "popularity" not in result.values
    assert "HR@10" in result.table().upper()
    assert not (result.path / "curves.png").exists()


def test_nodes_with_files_of_their_own_need_a_catalogue_alone(tmp_path: Path) -> None:
    lines = [f"u{user},i{(user + k) % 12},{k}" for user in range(8) for k in range(6)]
    (tmp_path / "all.csv").write_text("\n".join(["user,item,time", *lines]) + "\n")
    Catalogue.of(prepare(tmp_path / "all.csv", tmp_path / "data")).save(tmp_path / "c.json")
    configs: list[dict[str, Any]] = []
    for site, part in enumerate((lines[:30], lines[30:])):
        (tmp_path / f"{site}.csv").write_text("\n".join(["user,item,time", *part]) + "\n")
        paths = {"interactions": str(tmp_path / f"{site}.csv"), "state": str(tmp_path / f"s{site}")}
        configs.append({"site": f"site-{site}", **paths})
    given = {"catalogue": str(tmp_path / "c.json"), "out": str(tmp_path / "run"), **SMALL}
    run_config = {**DEFAULTS, **given}
    app(InProcessGrid(client, configs, run_config), Context(1, 0, {}, RecordDict(), run_config))
    result = Result.open(tmp_path / "run").values
    assert result["users"] == {"all": 8, "eligible": 8, "evaluated": 8, "trained": 8}
    head = json.loads((tmp_path / "run" / "config.json").read_text())
    assert head["catalogue"]["name"] == "all"
    assert "data" not in head


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"catalogue": "/nowhere.json"}, "catalogue /nowhere.json cannot be read"),
        ({"rounds": "abc"}, "setting 'rounds' needs a value of type int, not 'abc'"),
        ({"min_nodes": "two"}, "'min-nodes' needs a value of type int, not 'two'"),
        ({"wait": True}, "'wait' needs a value of type float, not True"),
        ({"algorithm": "fedrecgell"}, "fedrecgel"),
        ({"preset": "best"}, "unknown preset 'best'"),
        ({"out": ""}, "run-config has no 'out'"),
        ({"data": "/nowhere"}, "/nowhere is not a prepared data set"),
        ({"min_nodes": 3, "wait": 0.1}, "2 of 3 nodes are there"),
    ],
)
def test_what_is_wrong_in_run_config_is_one_line(
    run: Run, tmp_path: Path, overrides: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedRecError, match=message) as caught:
        run(**overrides)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_flower_prints_our_errors_without_a_traceback(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError):
        run(rounds="abc")
    logger = logging.getLogger("flwr")
    try:
        raise ConfigError("this and that")
    except ConfigError as error:
        record = logger.makeRecord("flwr", 40, "", 0, "raised", (), (type(error), error, None))
    assert logger.filter(record)
    assert record.getMessage() == "error: this and that"
    assert not record.exc_info


def test_a_resumed_run_goes_on(run: Run) -> None:
    folder = run(rounds=1)
    assert Result.open(folder).values["round"]["trained"] == 1
    resumed = Result.open(run(rounds=2, resume=True))
    assert resumed.values["round"]["trained"] == 2
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["round"] for line in lines] == [1, 2]


def test_a_resumed_run_keeps_its_algorithm_and_preset(run: Run) -> None:
    run(rounds=1, algorithm="fedncf")
    found = Result.open(run(rounds=2, resume=True, preset="", embedding_dim="")).values
    assert (found["algorithm"], found["preset"], found["round"]["trained"]) == (
        "fedncf",
        "paper",
        2,
    )


class Appearing:
    """A Grid whose nodes come one after another, and a clock for it."""

    def __init__(self, times: list[float]) -> None:
        self.times, self.now = times, 0.0

    def get_node_ids(self) -> list[int]:
        return [i for i, time in enumerate(self.times) if time <= self.now]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self, least: int, wait: float) -> int:
        grid: Any = self
        found = wait_for_nodes(
            grid, least, wait, quiet=QUIET, clock=lambda: self.now, sleep=self.sleep
        )
        return len(found)


def test_nodes_that_come_one_by_one_are_all_waited_for() -> None:
    grid = Appearing([0.0, 0.3, 0.9, 1.7])
    assert grid.wait(1, 60) == 4
    assert grid.now == pytest.approx(1.7 + QUIET, abs=0.2)


def test_too_few_nodes_are_an_error_with_both_numbers() -> None:
    with pytest.raises(FederationError, match="1 of 2 nodes are there after 5 s"):
        Appearing([0.0]).wait(2, 5)


def test_nodes_that_come_and_go_are_waited_for_no_longer_than_missing_ones() -> None:
    class Flapping:
        def get_node_ids(self) -> list[int]:
            return [1, 2] if round(seconds * 10) % 2 else [1, 2, 3]

    seconds = 0.0

    def sleep(more: float) -> None:
        nonlocal seconds
        seconds += more
        assert seconds < 60, "waits for ever"

    nodes = wait_for_nodes(
        Flapping(),  # type: ignore[arg-type] # no more of a Grid is needed
        2,
        5.0,
        quiet=QUIET,
        clock=lambda: seconds,
        sleep=sleep,
    )
    assert len(nodes) >= 2
