"""Who is forgotten is gone from what was prepared too, unless a run still needs it."""

import json
from pathlib import Path

import pytest

from fedrecgel.client.forget_prepared import forget_prepared
from fedrecgel.common.data.dataset import Dataset, by_name, make_dataset
from fedrecgel.common.data.store import write_data_set


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Runs ``old`` and ``again`` of a data set with anna, ``other`` of one without her."""
    for key, ids in (("with", ["anna", "bert"]), ("without", ["bert", "cleo"])):
        data = make_dataset([[0, 1], [2]], [2, 1], [3, 4], 5, user_ids=ids)
        write_data_set(tmp_path / "prepared" / key, data.manifest, by_name(data.arrays()), {})
    (tmp_path / "runs").mkdir()
    for run, key in (("old", "with"), ("again", "with"), ("other", "without")):
        (tmp_path / "runs" / f"{run}.json").write_text(json.dumps({"data": key}))
    return tmp_path


def prepared(state: Path) -> list[str]:
    return sorted(folder.name for folder in (state / "prepared").iterdir())


def test_data_of_runs_that_ended_are_overwritten_and_gone(state: Path) -> None:
    names = state / "prepared" / "with" / "arrays" / "user_ids.npy"
    names = names if names.exists() else next((state / "prepared" / "with").rglob("*user*"))
    link = state / "the same bytes"
    link.hardlink_to(names)
    assert b"a" in link.read_bytes().lower()
    found = forget_prepared(state, "anna", {"old": True, "again": True}, 0.0)
    assert (found.removed, found.kept) == ([state / "prepared" / "with"], [])
    assert prepared(state) == ["without"]
    assert sorted(path.name for path in (state / "runs").iterdir()) == ["other.json"]
    assert set(link.read_bytes()) == {0}


def test_data_of_a_run_in_progress_stay_as_they_are_and_are_named(state: Path) -> None:
    found = forget_prepared(state, "anna", {"old": True, "again": False}, 0.0)
    assert (found.removed, found.kept) == ([], [state / "prepared" / "with"])
    assert Dataset.load(state / "prepared" / "with").user_ids.tolist() == ["anna", "bert"]
    assert len(list((state / "runs").iterdir())) == 3


def test_a_run_that_the_store_does_not_know_is_new_or_long_over(state: Path) -> None:
    written = (state / "runs" / "again.json").stat().st_mtime
    assert forget_prepared(state, "anna", {"old": True}, written - 60).kept
    assert forget_prepared(state, "anna", {"old": True}, written + 60).removed


def test_others_and_sites_without_prepared_data_are_left_alone(state: Path, tmp_path: Path) -> None:
    found = forget_prepared(state, "zoe", {}, 1e12)
    assert (found.removed, found.kept) == ([], [])
    assert prepared(state) == ["with", "without"]
    found = forget_prepared(tmp_path / "none", "anna", {}, 0.0)
    assert (found.removed, found.kept) == ([], [])
