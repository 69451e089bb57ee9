"""What separate sites share: a catalogue, under which each prepares its own file as all would."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecgel.common.data.catalogue import UNKNOWN, Catalogue, site_dataset
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.data.prepare import prepare
from fedrecgel.common.errors import DataError

PER_USER = ("validation_items", "test_items", "validation_candidates", "test_candidates")
ROWS = [(u, i, 10 * i + u) for u in range(6) for i in range(u, u + 6)]


def write(path: Path, rows: list[tuple[Any, ...]], header: str = "user,item,time") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def same_rows(site: Dataset, whole: Dataset, first: int) -> None:
    """Every number about the site's users is that of the same users in the whole data set."""
    users = slice(first, first + site.num_users)
    assert site.user_ids.tolist() == whole.user_ids[users].tolist()
    assert site.item_ids.tolist() == whole.item_ids.tolist()
    begin, end = whole.train_offsets[[users.start, users.stop]]
    assert site.train_items.tolist() == whole.train_items[begin:end].tolist()
    assert np.array_equal(
        np.diff(site.train_offsets), np.diff(whole.train_offsets[first : users.stop + 1])
    )
    for name in PER_USER:
        assert np.array_equal(getattr(site, name), getattr(whole, name)[users]), name


@pytest.mark.parametrize("settings", [{}, {"k_core": 3}, {"min_item_interactions": 3}])
def test_a_sites_rows_are_those_of_the_whole_data_set(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    whole = prepare(write(tmp_path / "all.csv", ROWS), tmp_path / "all", seed=3, **settings)
    catalogue = Catalogue.of(whole)
    first = 0
    for number, users in enumerate(({0, 1}, {2, 3, 4}, {5})):
        rows = [row for row in ROWS if row[0] in users]
        file = write(tmp_path / f"{number}.csv", rows)
        site = site_dataset(catalogue, file, tmp_path / f"site-{number}")
        same_rows(site, whole, first)
        first += site.num_users
    assert first == whole.num_users


def test_filmtrust_in_three_files_gives_the_rows_of_the_whole(
    shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The raw file cut by user; no times, so all order is hashed."""
    monkeypatch.setenv("FEDRECGEL_DATA", str(shared_data))
    whole = prepare("filmtrust", tmp_path / "whole")
    lines = (shared_data / "filmtrust" / "ratings.txt").read_text().split("\n")
    rows = [line.replace(",", " ").split() for line in lines if line.strip()]
    catalogue = Catalogue.of(whole)
    cuts = [int(whole.user_ids[i]) for i in (900, 1226)]
    parts: list[list[tuple[Any, ...]]] = [[], [], []]
    for user, item, *_ in rows:
        parts[int(np.searchsorted(cuts, int(user), side="right"))].append((user, item))
    first = 0
    for number, part in enumerate(parts):
        file = write(tmp_path / f"{number}.csv", part, "user,item")
        site = site_dataset(catalogue, file, tmp_path / f"site-{number}")
        same_rows(site, whole, first)
        first += site.num_users
    assert first == whole.num_users == 1227


def test_rows_of_unknown_items_are_left_out_and_counted(tmp_path: Path) -> None:
    catalogue = Catalogue("shop", np.array(["b", "a", "c"]), min_interactions=2)
    rows = [("x", "a", 1), ("x", "new", 2), ("x", "c", 3), ("y", "new", 1), ("y", "b", 2)]
    site = site_dataset(catalogue, write(tmp_path / "f.csv", rows), tmp_path / "data")
    assert site.user_ids.tolist() == ["x"]  # y has one interaction that counts
    assert site.manifest.report[UNKNOWN] == 2
    assert (site.train_items.tolist(), site.test_items.tolist()) == ([1], [2])


def test_ratings_below_the_catalogues_threshold_do_not_count(tmp_path: Path) -> None:
    catalogue = Catalogue("shop", np.array(["1", "2", "3"]), min_interactions=1, threshold=4.0)
    rows = [("x", 1, 5, 1), ("x", 2, 3, 2), ("x", 3, 4, 3)]
    rated = write(tmp_path / "rated.csv", rows, "user,item,rating,time")
    found = site_dataset(catalogue, rated, tmp_path / "rated")
    assert (found.train_items.tolist(), found.test_items.tolist()) == ([0], [2])
    plain = write(tmp_path / "plain.csv", [(u, i, t) for u, i, _, t in rows])
    assert site_dataset(catalogue, plain, tmp_path / "plain").num_train == 1
    whole = prepare(rated, tmp_path / "whole", threshold=4, min_interactions=1)
    assert Catalogue.of(whole).threshold == 4.0


def test_a_catalogue_is_the_same_after_a_file(tmp_path: Path) -> None:
    whole = prepare(write(tmp_path / "all.csv", ROWS), tmp_path / "all", seed=3)
    catalogue = Catalogue.of(whole)
    catalogue.save(tmp_path / "catalogue.json")
    found = Catalogue.load(tmp_path / "catalogue.json")
    assert found.hash == catalogue.hash
    assert found.item_ids.tolist() == whole.item_ids.tolist()
    assert (found.name, found.rules) == (catalogue.name, catalogue.rules)
    assert b"user" not in (tmp_path / "catalogue.json").read_bytes()


def test_the_hash_is_of_items_in_order_and_of_rules() -> None:
    one = Catalogue("a", np.array(["1", "2"]))
    assert Catalogue("b", np.array(["1", "2"])).hash == one.hash
    for other in (
        Catalogue("a", np.array(["2", "1"])),
        Catalogue("a", np.array(["12"])),
        Catalogue("a", np.array(["1", "2"]), seed=1),
        Catalogue("a", np.array(["1", "2"]), min_interactions=4),
    ):
        assert other.hash != one.hash


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(items=c["items"][::-1]), "is damaged: its hash differs"),
        (lambda c: c.update(items=[]), "is damaged"),
        (lambda c: c["rules"].update(seed=7), "is damaged"),
        (lambda c: c["rules"].update(salt=7), "is damaged"),
        (lambda c: c.update(format_version=9), "has format version 9, this version reads 1"),
        (lambda c: c.update(format="x"), "is not a catalogue"),
    ],
)
def test_a_file_that_is_not_as_it_was_written_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], message: str
) -> None:
    path = tmp_path / "catalogue.json"
    Catalogue("a", np.array(["1", "2"])).save(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message):
        Catalogue.load(path)


def test_a_missing_catalogue_and_one_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"catalogue .*none.json cannot be read"):
        Catalogue.load(tmp_path / "none.json")
    with pytest.raises(DataError, match="cannot write"):
        Catalogue("a", np.array(["1"])).save(tmp_path / "none" / "catalogue.json")


def test_rules_that_need_everybody_have_no_catalogue(tmp_path: Path) -> None:
    file = write(tmp_path / "all.csv", ROWS)
    for settings in ({"split": "time"}, {"protocol": "paper"}):
        whole = prepare(file, tmp_path / "all", overwrite=True, **settings)  # type: ignore[arg-type]
        with pytest.raises(DataError, match="protocol default with leave-one-out"):
            Catalogue.of(whole)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is the file mounted there"),
        ("", "empty"),
        ("user,item\n", "no"),
        ("user,item\nx,new\nx,newer\n", "none of its 2 items is in the catalogue of shop"),
        ("user,item\nx,1\n", "no user has 2 interactions"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, content: str | None, message: str
) -> None:
    catalogue = Catalogue("shop", np.array(["1", "2", "3"]), min_interactions=2)
    file = tmp_path / "file.csv"
    if content is not None:
        file.write_text(content)
    with pytest.raises(DataError, match=message) as caught:
        site_dataset(catalogue, file, tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "data").exists()


def test_the_minimum_is_no_higher_than_what_the_users_have() -> None:
    data = make_dataset([[0], [1, 2]], [-1, 0], [1, 3], 5, num_candidates=2)
    assert Catalogue.of(data).min_interactions == 2
