"""The whole preparation, on files small enough to check by hand."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedrecgel.common.data import Dataset, prepare
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.errors import ConfigError, DataError

Row = tuple[object, ...]
Prepare = Callable[..., Dataset]


@pytest.fixture
def made(tmp_path: Path) -> Prepare:
    """Return a function that prepares rows, and keyword settings, in a folder of its own."""
    folders = iter(range(1_000))

    def make(rows: Sequence[Row], header: str = "user,item,time", **settings: object) -> Dataset:
        folder = tmp_path / str(next(folders))
        folder.mkdir()
        file = folder / "file.csv"
        file.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]))
        return prepare(file, folder / "data", **settings)  # type: ignore[arg-type]

    return make


def content(data: Dataset) -> dict[str, tuple[list[str], str, str]]:
    """Train items in order, validation item and test item of every user, all by id."""
    names = [*data.item_ids.tolist(), ""]
    return {
        str(user): (
            [names[i] for i in data.train_of(u)],
            names[data.validation_items[u]],
            names[data.test_items[u]],
        )
        for u, user in enumerate(data.user_ids)
    }


def counts_add_up(data: Dataset) -> None:
    report = data.manifest.report
    bad = report["bad_rows"]
    assert isinstance(bad, dict)
    keys = ("repeated_headers", "below_threshold", "duplicates_merged")
    parts = [report[key] for key in (*keys, "rows_below_minimum", "rows_kept")]
    assert report["rows_read"] == bad["count"] + sum(int(str(part)) for part in parts)


def test_gappy_unsorted_ids(made: Prepare) -> None:
    rows = [(user, item, item) for user in (3, 10, 7) for item in (9, 0, 2)]
    data = made(rows, min_interactions=3)
    assert data.user_ids.tolist() == ["3", "7", "10"]
    assert data.item_ids.tolist() == ["0", "2", "9"]
    assert content(data) == {user: (["0"], "2", "9") for user in ("3", "7", "10")}
    counts_add_up(data)


def test_duplicates_go_before_the_minimum_and_the_split(made: Prepare) -> None:
    rows = [("a", 1, 1), ("a", 1, 9), ("a", 2, 2), ("a", 3, 3)]
    rows += [("b", 1, 1), ("b", 1, 2), ("b", 1, 3)]
    data = made(rows, min_interactions=3)
    assert content(data) == {"a": (["2"], "3", "1")}
    assert data.manifest.report["duplicates_merged"] == 3
    assert data.manifest.report["users_below_minimum"] == 1
    assert data.manifest.report["rows_below_minimum"] == 1
    counts_add_up(data)


def test_users_with_few_interactions(made: Prepare) -> None:
    rows = [(f"u{n}", item, item) for n in range(1, 6) for item in range(n)]
    everyone = content(made(rows, min_interactions=0))
    assert everyone["u1"] == (["0"], "", "")
    assert everyone["u2"] == (["0"], "", "1")
    assert everyone["u3"] == (["0"], "1", "2")
    assert set(content(made(rows))) == {"u5"}
    with pytest.raises(DataError, match="no user has 6 interactions; lower --min-interactions"):
        made(rows, min_interactions=6)


def test_a_file_without_times_is_split_at_random_whatever_its_order(made: Prepare) -> None:
    rows = [(user, item) for user in range(30) for item in range(8)]
    first = made(rows, "user,item")
    random.Random(0).shuffle(rows)
    assert made(rows, "user,item").hash == first.hash
    assert made(rows, "user,item", seed=1).hash != first.hash
    assert len(set(first.test_items.tolist())) > 4
    expected = "no timestamps: held-out items drawn at random with seed 0"
    assert first.manifest.rules["order"] == expected
    assert first.manifest.report["missing_times"] == 240


def test_new_numbers_for_ids_change_no_choice_of_ties(made: Prepare) -> None:
    rows = [(f"u{user}", f"i{item}", 5) for user in range(30) for item in range(8)]
    one = content(made(rows))
    two = content(made([*rows, *[("a", f"a{item}", 5) for item in range(8)]]))
    assert {user: two[user] for user in one} == one


def test_ties_by_the_order_of_the_file(made: Prepare) -> None:
    """Of equal times the row that stands first is the latest, as PFedRec's preparation ranks."""
    rows = [("a", item, 7) for item in (5, 1, 9, 3, 2)] + [("b", 9, 8), ("b", 1, 7), ("b", 5, 7)]
    data = made(rows, min_interactions=3, ties="file")
    assert content(data) == {"a": (["2", "3", "9"], "1", "5"), "b": (["5"], "1", "9")}
    assert data.manifest.rules["ties"] == "the row that stands first in the file is the latest"
    assert "--ties file" in data.manifest.command
    with pytest.raises(DataError, match="sites of their own have files of their own"):
        Catalogue.of(data)


def test_an_item_that_occurs_only_in_the_test(made: Prepare) -> None:
    rows = [(user, item, item) for user in range(3) for item in range(5)] + [(2, "X", 9)]
    data = made(rows)
    assert "X" in data.item_ids.tolist()
    assert content(data)["2"][2] == "X"
    assert data.manifest.statistics["split"]["test_items_never_trained"] == 3
    items = pd.read_parquet(data.path / "items.parquet")  # type: ignore[operator]
    assert items.set_index("item_id").train_count["X"] == 0


def test_users_who_know_almost_everything(made: Prepare) -> None:
    rows = [("A", i, i) for i in range(10)] + [("B", i, i) for i in range(9)]
    rows += [("C", i, i) for i in (0, 1, 9)]
    data = made(rows, min_interactions=3)
    assert data.test_candidates[0].tolist() == [-1] * 99
    assert data.test_candidates[1].tolist() == [9] + [-1] * 98
    assert sorted(data.test_candidates[2, :7].tolist()) == [2, 3, 4, 5, 6, 7, 8]
    assert data.manifest.statistics["split"]["users_with_fewer_candidates"] == 3


def test_candidates_hold_nothing_the_user_knows(made: Prepare) -> None:
    rng = np.random.default_rng(0)
    rows = [(u, int(i), t) for u in range(40) for t, i in enumerate(rng.permutation(150)[:20])]
    data = made(rows)
    for u in range(data.num_users):
        known = {*data.train_of(u).tolist(), data.validation_items[u], data.test_items[u]}
        for row in (data.validation_candidates[u], data.test_candidates[u]):
            assert len(set(row.tolist())) == 99
            assert not known & set(row.tolist())
        assert data.validation_candidates[u].tolist() != data.test_candidates[u].tolist()


def test_a_threshold_makes_implicit_data(made: Prepare) -> None:
    rows = [("a", i, i, 5) for i in range(3)] + [("a", 9, 9, 1), ("b", 1, 1, 0), ("c", 1, 1, -1)]
    data = made(rows, "user,item,time,rating", threshold=4, min_interactions=3)
    assert data.manifest.rules["positive"] == "rating >= 4"
    assert data.manifest.report["below_threshold"] == 3
    assert data.manifest.report["users_without_positives"] == 2
    assert content(data) == {"a": (["0"], "1", "2")}
    counts_add_up(data)


def test_bad_rows_are_in_the_report_with_their_lines(made: Prepare) -> None:
    rows: list[Row] = [("a", i, i) for i in range(5)]
    rows[2:2] = [("", 1, 1), ("a", "", 1), ("a", 1), ("user", "item", "time")]
    data = made(rows)
    bad = data.manifest.report["bad_rows"]
    assert isinstance(bad, dict)
    assert [row["place"].rsplit("/", 1)[1] for row in bad["first"]] == [
        "file.csv line 4",
        "file.csv line 5",
        "file.csv line 6",
    ]
    counts_add_up(data)


def test_the_tables_say_what_the_arrays_say(made: Prepare) -> None:
    rows: list[Row] = [("a", i, i) for i in range(5)] + [("b", i, "") for i in range(5)]
    data = made(rows)
    assert data.path is not None
    table = pd.read_parquet(data.path / "interactions.parquet")
    assert table.part.value_counts().to_dict() == {"train": 6, "validation": 2, "test": 2}
    test = table[table.part == "test"]
    assert test.item.tolist() == data.test_items.tolist()
    assert table[table.user == 0].time.tolist() == [0, 1, 2, 3, 4]
    assert table[table.user == 1].time.isna().all()
    users = pd.read_parquet(data.path / "users.parquet")
    assert users.user_id.tolist() == ["a", "b"]
    assert users.train_count.tolist() == [3, 3]


def test_the_command_of_the_manifest_makes_the_same_again(made: Prepare) -> None:
    import shlex

    from fedrecgel.cli import main

    rows = [("x", f"u{u}", i, i % 3) for u in range(3) for i in range(8)]
    settings = {"user_column": "who", "seed": 7, "min_interactions": 2, "threshold": 1}
    data = made(rows, "a b,who,item,rating", num_candidates=3, **settings)
    words = shlex.split(data.manifest.command)
    assert words[0] == "fedrecgel"
    assert main(words[1:]) == 0
    assert data.path is not None
    assert Dataset.load(data.path).hash == data.hash


class TestPaperProtocol:
    def test_duplicates_stay_and_nothing_is_for_validation(self, made: Prepare) -> None:
        rows = [("a", 1, 1), ("a", 1, 2), ("a", 2, 3), ("a", 3, 4), ("a", 1, 5)]
        data = made(rows, protocol="paper")
        assert content(data) == {"a": (["1", "1", "2", "3"], "", "1")}
        assert data.validation_candidates.max() == -1
        assert data.protocol == data.manifest.protocol == "paper"
        assert data.manifest.rules["duplicates"] == "kept"
        counts_add_up(data)

    def test_ties_go_to_the_item_seen_first(self, made: Prepare) -> None:
        rows = [("a", item, 7) for item in (5, 1, 9, 3, 2)]
        assert content(made(rows, protocol="paper"))["a"][2] == "5"

    def test_missing_times_are_invented(self, made: Prepare) -> None:
        rows = [(user, item) for user in range(20) for item in range(8)]
        data = made(rows, "user,item", protocol="paper")
        assert data.manifest.rules["order"] == "invented random times, seed 0"
        assert len(set(data.test_items.tolist())) > 4
        assert made(rows, "user,item", protocol="paper", seed=1).hash != data.hash


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"protocol": "papre"}, "protocol 'papre' is unknown; it is one of default, paper"),
        ({"min_interactions": -1}, "min-interactions is -1"),
        ({"num_candidates": 0}, "num-candidates is 0"),
        ({"ties": "fiel"}, "ties 'fiel' is unknown; it is one of hash, file"),
        ({"ties": "file", "protocol": "paper"}, "a rule of its own for ties"),
    ],
)
def test_impossible_settings(made: Prepare, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made([("a", 1, 1)], **settings)
