"""Data sets in memory and on disk."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedrecgel.common.data import Dataset, make_dataset, prepare
from fedrecgel.common.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    prepare("synthetic", tmp_path / "data", users=20, items=30, interactions=8)
    return tmp_path / "data"


def test_a_data_set_in_memory() -> None:
    data = make_dataset([[0, 1, 2], [3]], validation=[3, -1], test=[4, 0], num_items=6, seed=1)
    assert (data.num_users, data.num_items, data.num_train) == (2, 6, 4)
    assert data.train_of(0).tolist() == [0, 1, 2]
    assert data.train_of(1).tolist() == [3]
    assert data.train_counts.tolist() == [1, 1, 1, 1, 0, 0]
    assert data.path is None
    assert data.protocol == "default"
    assert data.test_candidates[0, :2].tolist() == [5, -1]
    assert sorted(data.test_candidates[1].tolist())[-4:] == [1, 2, 4, 5]
    assert data.validation_candidates[1].tolist() == [-1] * 99
    assert len(data.user_keys) == 2
    data.verify()


def test_equal_contents_have_equal_hashes() -> None:
    one = make_dataset([[0], [1]], [-1, -1], [2, 2], 3)
    same = make_dataset([[0], [1]], [-1, -1], [2, 2], 3)
    other = make_dataset([[1], [0]], [-1, -1], [2, 2], 3)
    assert one.hash == same.hash != other.hash


def test_an_unknown_id_gets_help() -> None:
    names = ["anna", "bert", "carl"]
    data = make_dataset([[0]] * 3, [-1] * 3, [1] * 3, 12, user_ids=names)
    assert data.user_index("bert") == 1
    assert data.items_of(["i3", "i11"]).tolist() == [3, 11]
    with pytest.raises(DataError, match=r"no user 'ana' among the 3 users .* did you mean 'anna'"):
        data.user_index("ana")
    with pytest.raises(DataError, match=r"no item '999' among the 12 items .* look like 'i0'"):
        data.items_of(["i1", "999"])


def test_a_folder_is_mapped_not_read(folder: Path) -> None:
    data = Dataset.load(folder, verify=True)
    assert isinstance(data.train_items, np.memmap)
    assert data.train_items.dtype == data.test_candidates.dtype == np.int32
    assert data.train_offsets.dtype == np.int64
    assert data.num_users == 20
    assert data.train_offsets[-1] == data.num_train


def test_a_folder_that_is_no_data_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no manifest.json\); make it with: fedrecgel prepare"):
        Dataset.load(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"format": "other"}', '{"format": 1}', "\x00"])
def test_a_manifest_that_is_none(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(DataError, match="fedrecgel prepare"):
        Dataset.load(folder)


def test_another_format_version_names_the_command(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps(content | {"format_version": 99}))
    expected = r"version 99, .* version 2; remake it: fedrecgel prepare synthetic .*--users 20"
    with pytest.raises(DataError, match=expected):
        Dataset.load(folder)


def test_a_folder_of_format_version_1_is_read_as_it_is(folder: Path) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    del content["split"]
    (folder / "manifest.json").write_text(json.dumps(content | {"format_version": 1}))
    data = Dataset.load(folder, verify=True)
    assert data.split == "leave-one-out"
    assert not data.several


@pytest.mark.parametrize("field", ["split", "seed", "name", "files", "statistics"])
def test_a_manifest_without_a_field(folder: Path, field: str) -> None:
    content = json.loads((folder / "manifest.json").read_text())
    del content[field]
    (folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"no proper '{field}'; remake it: fedrecgel prepare"):
        Dataset.load(folder)


def test_a_missing_or_damaged_array(folder: Path) -> None:
    file = folder / "arrays" / "test_items.npy"
    content = file.read_bytes()
    for damaged in (content[:50], b"", content[:-4]):
        file.write_bytes(damaged)
        with pytest.raises(DataError, match=r"test_items.npy is damaged .* remake it: fedrecgel"):
            Dataset.load(folder)
    file.unlink()
    with pytest.raises(DataError, match=r"test_items.npy is missing; remake it: fedrecgel"):
        Dataset.load(folder)


def test_an_array_of_another_size(folder: Path) -> None:
    np.save(folder / "arrays" / "test_items.npy", np.zeros(3, np.int32))
    with pytest.raises(DataError, match=r"test_items.npy does not fit"):
        Dataset.load(folder)
    prepare("synthetic", folder, users=20, items=30, interactions=8, overwrite=True)
    np.save(folder / "arrays" / "train_items.npy", np.zeros(3, np.int32))
    with pytest.raises(DataError, match=r"train_items.npy does not fit"):
        Dataset.load(folder)


def test_verify_finds_a_changed_number(folder: Path) -> None:
    file = folder / "arrays" / "train_items.npy"
    items = np.load(file)
    items[0] = (items[0] + 1) % 30
    np.save(file, items)
    Dataset.load(folder)
    with pytest.raises(DataError, match=r"train_items.npy is missing or changed"):
        Dataset.load(folder, verify=True)
