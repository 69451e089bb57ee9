"""What a comparison refuses before it writes or trains anything."""

from pathlib import Path

import pytest

from fedrecgel.common.algorithms.fedmf import FedMF
from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.config import Scalar
from fedrecgel.common.data.arrays import by_name
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.data.store import write_data_set
from fedrecgel.common.errors import ConfigError, RunError
from fedrecgel.simulation.compare import plan
from fedrecgel.simulation.compare.plan import Cell, Entry, draw_trials, start
from fedrecgel.simulation.compare.store import Store
from fedrecgel.simulation.compare.study import compare


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious.txt").write_text("mine")
    with pytest.raises(RunError, match="holds something that is no comparison; choose another"):
        Store.open(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_an_empty_folder_and_a_comparison_are_taken(tmp_path: Path) -> None:
    first = Store.open(tmp_path)
    (tmp_path / "comparison.txt").write_text("a table")
    assert Store.open(tmp_path).folder == first.folder


@pytest.mark.parametrize(
    "wrong", [{"item-lr": "abc"}, {"rounds": 0}, {"server-sees": "sum"}, {"fedmf.nothing": 1}]
)
def test_nothing_is_made_where_a_setting_is_wrong(
    small_data: Dataset, tmp_path: Path, wrong: dict[str, Scalar]
) -> None:
    out, settings = tmp_path / "out", {"log": "none", "workers": 0, **wrong}
    with pytest.raises(ConfigError):
        compare(small_data.path, out, algorithms=["fedmf", "perfedrec"], **settings)  # type: ignore[arg-type]
    assert not out.exists()


def test_data_sets_of_one_name_are_told_apart(small_data: Dataset, tmp_path: Path) -> None:
    twice = make_dataset([[0, 1], [1, 2]], [2, 3], [3, 0], 6, num_candidates=2)
    write_data_set(tmp_path / "other", twice.manifest, by_name(twice.arrays()), {})
    other = Dataset.load(tmp_path / "other")
    assert other.name == small_data.name
    found = compare(
        [small_data.path, other.path], tmp_path / "out", algorithms=["fedmf"], workers=0, log="none"
    )
    names = [part["name"] for part in found.values["data"]]
    assert names == [f"memory {data.hash[:8]}" for data in (small_data, other)]
    assert all(f"{name}:" in found.table() for name in names)


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
