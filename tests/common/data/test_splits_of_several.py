"""Splits by time and by share, the lists of held-out items, k-core and the minimum of items."""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecgel.common.data import Dataset, make_dataset, prepare
from fedrecgel.common.data.filters import Minimum, keep_minimum
from fedrecgel.common.data.split import Events
from fedrecgel.common.errors import ConfigError, DataError

Prepare = Callable[..., Dataset]


@pytest.fixture
def made(tmp_path: Path) -> Prepare:
    """Return ``prepare`` of rows (user, item, time)."""
    count = iter(range(1_000))

    def make(rows: list[tuple[Any, ...]], **options: Any) -> Dataset:
        number = next(count)
        file = tmp_path / f"own{number}.csv"
        head = ("user", "item", "time")[: len(rows[0])]
        file.write_text("\n".join(",".join(map(str, row)) for row in [head, *rows]))
        return prepare(file, tmp_path / f"out{number}", **{"min_interactions": 0} | options)

    return make


def lists(data: Dataset, split: str) -> list[list[str]]:
    items, offsets = data.held_out(split)
    parts = [items[a:b] for a, b in itertools.pairwise(offsets)]
    return [data.item_ids[part].tolist() for part in parts]


# Ten days; a acts on all of them, b on days 0 to 8 every second, c only from day 8 on.
DAYS = [
    *(("a", f"i{t}", t) for t in range(10)),
    *(("b", f"i{t}", t) for t in range(0, 9, 2)),
    ("c", "i0", 8),
    ("c", "i1", 9),
]


def test_a_cut_holds_out_everything_from_a_moment_on(made: Prepare) -> None:
    data = made(DAYS, split="time", cut=8)
    # From day 8 on: a 8, 9; b 8; c 8, 9. As many before: a 7, 6, 5, b 6, and 4 ties with b 4.
    assert data.user_ids.tolist() == ["a", "b"]
    assert lists(data, "test") == [["i8", "i9"], ["i8"]]
    assert lists(data, "validation") == [["i4", "i5", "i6", "i7"], ["i4", "i6"]]
    assert [data.item_ids[data.train_of(u)].tolist() for u in (0, 1)] == [
        ["i0", "i1", "i2", "i3"],
        ["i0", "i2"],
    ]
    assert data.item_ids[data.test_items].tolist() == ["i8", "i8"]
    split, report = data.manifest.statistics["split"], data.manifest.report
    assert (split["cold_users"], report["rows_of_cold_users"], report["rows_kept"]) == (1, 2, 15)
    assert "all from 8 on = test" in str(data.manifest.rules["split"])


def test_a_share_is_the_last_of_each_user(made: Prepare) -> None:
    data = made(DAYS, split="share", share=0.2)
    assert lists(data, "test") == [["i8", "i9"], ["i8"], ["i1"]]
    assert lists(data, "validation") == [["i6", "i7"], ["i6"], []]
    assert data.item_ids[data.train_of(2)].tolist() == ["i0"]
    assert data.validation_items.tolist()[2] == -1


def test_a_large_share_leaves_something_to_train_on(made: Prepare) -> None:
    data = made([("u", i, i) for i in range(5)] + [("v", 1, 1)], split="share", share=0.49)
    assert np.diff(data.train_offsets).tolist() == [1, 1]
    assert lists(data, "test") == [["3", "4"], []]


def test_the_folder_is_versioned_and_read_back(made: Prepare) -> None:
    data = made(DAYS, split="share", share=0.2)
    again = Dataset.load(Path(str(data.path)), verify=True)
    assert again.several
    assert again.split == "share"
    assert again.hash == data.hash
    assert (Path(str(data.path)) / "arrays" / "test_lists.npy").is_file()
    assert "--split share --share 0.2" in data.manifest.command


def test_leave_one_out_has_lists_of_one(made: Prepare) -> None:
    data = made(DAYS)
    assert not data.several
    assert lists(data, "test") == [["i9"], ["i8"], ["i1"]]
    assert lists(data, "validation") == [["i8"], ["i6"], []]
    assert not list((Path(str(data.path)) / "arrays").glob("*_lists.npy"))


@pytest.mark.parametrize(
    ("cut", "words"),
    [("2024-01-09", "2024-01-09"), (0.8, "2024-01-09"), (1_704_758_400, "2024-01-09")],
)
@pytest.mark.parametrize("factor", [1, 1_000])
def test_a_cut_is_a_date_a_share_or_a_time(
    made: Prepare, cut: object, words: str, factor: int
) -> None:
    first = 1_704_067_200  # 2024-01-01
    rows = [("u", i, (first + 86_400 * i) * factor) for i in range(10)]
    if isinstance(cut, int):
        cut *= factor
    data = made(rows, split="time", cut=cut)
    assert lists(data, "test") == [["8", "9"]]
    assert words in str(data.manifest.rules["split"])


def test_days_written_as_digits(made: Prepare) -> None:
    rows = [("u", i, f"2024010{i}") for i in range(1, 10)]
    data = made(rows, split="time", cut="2024-01-08")
    assert lists(data, "test") == [["8", "9"]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cut": "2031-01-01"}, "is a date, but the times are numbers of no known unit"),
        ({"cut": 500}, r"cut 500 holds out nothing \(0 of 17\), .* the times go from 0 to 9"),
        ({"cut": 1}, r"holds out half of the events or more"),
    ],
)
def test_a_cut_that_cannot_be(made: Prepare, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        made(DAYS, split="time", **options)


def test_a_split_by_time_needs_times(made: Prepare) -> None:
    with pytest.raises(DataError, match="needs times, and there are none; set --time-column"):
        made([row[:2] for row in DAYS], split="time")


@pytest.mark.parametrize(
    "options",
    [
        {"split": "random"},
        {"split": "time", "protocol": "paper"},
        {"cut": 0.5},
        {"share": 0.1},
        {"split": "share", "share": 0.5},
        {"split": "time", "cut": "soon"},
        {"k_core": 0},
        {"k_core": 3, "min_item_interactions": 2},
        {"k_core": 3, "min_interactions": 13},
        {"min_item_interactions": -1},
    ],
)
def test_impossible_settings(made: Prepare, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        made(DAYS, **options)


def events(*pairs: tuple[int, int]) -> Events:
    user, item = np.array(pairs).T
    return Events(user, item, np.zeros(len(pairs), np.int64), np.ones(len(pairs), bool))


# u0 and u1 share items 0 and 1; u2 has 1 and 2, and item 2 has only u2.
CORE = events((0, 0), (0, 1), (1, 0), (1, 1), (2, 1), (2, 2))


def test_a_single_pass_counts_before_it_removes() -> None:
    once = keep_minimum(CORE, Minimum(2, 2))
    assert (once.users, once.items, once.rounds, len(once.events)) == (0, 1, 1, 5)


def test_a_core_goes_on_until_all_have_enough() -> None:
    core = keep_minimum(CORE, Minimum(2, 2, repeat=True))
    assert (core.users, core.items, core.rounds, len(core.events)) == (1, 1, 2, 4)
    assert not len(keep_minimum(CORE, Minimum(3, 3, repeat=True)).events)


def test_a_core_in_the_report(made: Prepare) -> None:
    rows = [*((u, i, i) for u in "abc" for i in range(3)), ("d", 0, 1), ("d", 9, 2), ("d", 8, 3)]
    data = made(rows, k_core=3, min_interactions=3)
    assert (data.num_users, data.num_items) == (3, 3)
    assert data.manifest.report["items_below_minimum"] == 2
    assert data.manifest.report["rows_below_minimum"] == 3
    assert "--k-core 3" in data.manifest.command
    with pytest.raises(DataError, match="no 9-core: nothing is left; lower --k-core"):
        made(rows, k_core=9, min_interactions=9)


def test_lists_in_memory() -> None:
    data = make_dataset([[0], [1, 2]], [[], [0]], [[1, 2], [3]], 5, num_candidates=2)
    assert data.several
    assert data.test_lists is not None
    assert data.test_lists.tolist() == [1, 2, 3]
    assert data.test_items.tolist() == [1, 3]
    assert data.validation_items.tolist() == [-1, 0]
    assert set(data.test_candidates[0].tolist()) == {3, 4}
