"""What a comparison refuses before it writes or trains anything."""

from pathlib import Path

import pytest

from fedrecgel.common.algorithms.fedmf import FedMF
from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, RunError
from fedrecgel.simulation.compare import plan
from fedrecgel.simulation.compare.plan import Cell, Entry, draw_trials, start
from fedrecgel.simulation.compare.store import Store


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(RunError, match="holds something that is no comparison; choose another"):
        Store.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_an_empty_folder_and_a_comparison_are_taken(tmp_path: Path) -> None:
    first = Store.open(tmp_path)
    (tmp_path / "comparison.txt").write_text("a table")
    assert Store.open(tmp_path).folder == first.folder


def test_a_search_over_no_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FedMF, "search", {"lr": (0.1, 0.2)})
    with pytest.raises(ConfigError, match="`search` of fedmf names 'lr', which is none"):
        draw_trials(make_config("fedmf"), 3)


def test_algorithms_that_need_individual_updates_are_refused_where_sums_are_asked_for() -> None:
    with pytest.raises(ConfigError, match="perfedrec compares the users' own updates"):
        start(Entry("perfedrec"), {"server-sees": "sum"})


def test_a_cell_of_somebody_elses_algorithm_changes_with_its_code(
    small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config("fedmf")
    own = Cell.run("seed", small_data, config)
    monkeypatch.setattr(plan, "algorithm_class", lambda name: _Foreign)
    foreign = Cell.run("seed", small_data, config)
    assert "code" not in own.about
    assert "code" in foreign.about
    assert own.key != foreign.key


class _Foreign(FedMF):
    """Of this file, not of the package."""
