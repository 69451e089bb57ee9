"""A data set and its sites on one machine, before anything is started."""

import tomllib
from pathlib import Path

import pytest

from fedrecgel import prepare
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, DeployError, RunError
from fedrecgel.deploy.bundle import write_app
from fedrecgel.deploy.one_machine import OneMachine


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepare("synthetic", tmp_path_factory.mktemp("data") / "data", users=40)


def test_a_second_time_takes_what_is_there(data: Dataset, tmp_path: Path) -> None:
    first = OneMachine.prepare(data, tmp_path, 3)
    assert [site.name for site in first.sites] == ["site-1", "site-2", "site-3"]
    assert OneMachine.prepare(data, tmp_path, 3).sites == first.sites


def test_nobody_else_reads_what_a_deployment_holds(data: Dataset, tmp_path: Path) -> None:
    site = OneMachine.prepare(data, tmp_path / "out", 3).sites[0]
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o700
    assert site.file.stat().st_mode & 0o777 == 0o600


def test_a_damaged_note_is_that_of_another_deployment(data: Dataset, tmp_path: Path) -> None:
    OneMachine.prepare(data, tmp_path, 3)
    (tmp_path / "deployment.json").write_text("{")
    with pytest.raises(DeployError, match="holds a deployment of other data"):
        OneMachine.prepare(data, tmp_path, 3)


def test_ten_sites_sort_by_their_names(data: Dataset, tmp_path: Path) -> None:
    names = [site.name for site in OneMachine.prepare(data, tmp_path, 10).sites]
    assert names[0] == "site-01"
    assert names == sorted(names)


def test_another_deployment_is_not_mixed_in(data: Dataset, tmp_path: Path) -> None:
    OneMachine.prepare(data, tmp_path, 3)
    with pytest.raises(DeployError, match="holds a deployment of other data or another number"):
        OneMachine.prepare(data, tmp_path, 2)


def test_a_wrong_setting_is_refused_before_anything_starts(data: Dataset, tmp_path: Path) -> None:
    machine = OneMachine.prepare(data, tmp_path, 2)
    with pytest.raises(ConfigError, match="rouns"):
        machine.run_config({"rouns": 3})
    with pytest.raises(ConfigError, match="--sites must be from 1 to 64, not 0"):
        OneMachine.prepare(data, tmp_path, 0)


def test_the_run_gets_what_was_named_and_bounded_waits(data: Dataset, tmp_path: Path) -> None:
    config = OneMachine.prepare(data, tmp_path, 2).run_config({"rounds": "7", "server-lr": 0.5})
    assert (config["rounds"], config["server-lr"]) == (7, 0.5)
    assert (config["min-nodes"], config["round-timeout"], config["wait"]) == (2, 300.0, 120.0)
    assert "embedding-dim" not in config  # the preset's


def test_the_app_needs_no_checkout(tmp_path: Path) -> None:
    project = tomllib.loads((write_app(tmp_path / "app") / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    assert app["components"]["clientapp"] == "fedrecgel.client.app:app"
    assert app["config"]["rounds"] == ""
    assert not list((tmp_path / "app").rglob("__pycache__"))
    assert any(need.startswith("flwr") for need in project["project"]["dependencies"])


def test_a_file_in_place_of_the_folder_is_refused(small_data: Dataset, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(RunError, match="is a file; choose another --out"):
        OneMachine.prepare(small_data, tmp_path / "out", 3)
