"""Writing: whole or not at all, and never over something else."""

import os
from pathlib import Path

import pytest

from fedrecgel.common.data import Dataset, prepare, store
from fedrecgel.common.errors import DataError


def make(out: Path, *, seed: int = 0, overwrite: bool = False) -> Dataset:
    return prepare(
        "synthetic", out, users=20, items=30, interactions=8, seed=seed, overwrite=overwrite
    )


def test_an_existing_data_set_is_kept_unless_told(tmp_path: Path) -> None:
    first = make(tmp_path / "data")
    with pytest.raises(DataError, match="exists; choose another --out or add --overwrite"):
        make(tmp_path / "data", seed=1)
    assert Dataset.load(tmp_path / "data").hash == first.hash
    second = make(tmp_path / "data", seed=1, overwrite=True)
    assert second.hash != first.hash
    second.verify()
    assert os.listdir(tmp_path) == ["data"]


def test_an_open_data_set_outlives_its_replacement(tmp_path: Path) -> None:
    first = make(tmp_path / "data")
    items = first.train_items.copy()
    make(tmp_path / "data", seed=1, overwrite=True)
    assert (first.train_items == items).all()


def test_a_folder_with_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for overwrite in (False, True):
        with pytest.raises(DataError, match="is not a prepared data set"):
            make(tmp_path, overwrite=overwrite)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(DataError, match="is not a prepared data set"):
        make(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_data_set_of_another_version_may_be_replaced(tmp_path: Path) -> None:
    make(tmp_path / "data")
    manifest = tmp_path / "data" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"format_version": 1', '"format_version": 0'))
    make(tmp_path / "data", overwrite=True).verify()


def test_an_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    make(tmp_path / "data").verify()


def test_a_file_or_a_link_in_the_way(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for out in (file, file / "data", tmp_path / "link"):
        with pytest.raises(DataError):
            make(out, overwrite=True)
    assert file.read_text() == "x"


@pytest.mark.parametrize("overwrite", [False, True])
def test_nothing_half_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overwrite: bool
) -> None:
    if overwrite:
        before = make(tmp_path / "data")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pyarrow.parquet.write_table", full)
    with pytest.raises(DataError, match=r"cannot write .*No space left on device"):
        make(tmp_path / "data", seed=1, overwrite=overwrite)
    assert os.listdir(tmp_path) == (["data"] if overwrite else [])
    if overwrite:
        before.verify()


def test_replacing_without_an_atomic_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make(tmp_path / "data")
    monkeypatch.setattr(store, "_exchange", lambda one, other: False)
    second = make(tmp_path / "data", seed=1, overwrite=True)
    assert second.hash != first.hash
    assert os.listdir(tmp_path) == ["data"]
