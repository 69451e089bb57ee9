"""Leave-one-out on events one can order by hand."""

import numpy as np

from fedrecgel.common.data.filters import active_users
from fedrecgel.common.data.split import (
    TEST,
    TRAIN,
    VALIDATION,
    Events,
    Split,
    chronological,
    earliest_item_last,
    hashed_ties,
    leave_one_out,
    one_per_pair,
)
from fedrecgel.common.hashing import mix, user_keys


def events(*rows: tuple[int, int, int | None]) -> Events:
    user, item = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    time = np.array([row[2] or 0 for row in rows])
    return Events(user, item, time, np.array([row[2] is not None for row in rows]))


def items_of(split: Split, user: int, part: int) -> list[int]:
    found = split.events.item[(split.events.user == user) & (split.part == part)]
    return [int(item) for item in found]


def no_ties(data: Events) -> np.ndarray:
    return np.zeros(len(data), dtype=np.uint64)


def test_the_last_is_for_the_test_and_the_one_before_for_validation() -> None:
    data = events((1, 4, 10), (0, 7, 3), (0, 8, 1), (1, 5, 30), (0, 9, 2), (1, 6, 20), (1, 3, 40))
    split = leave_one_out(chronological(data, no_ties(data)))
    assert [items_of(split, 0, part) for part in (TRAIN, VALIDATION, TEST)] == [[8], [9], [7]]
    assert [items_of(split, 1, part) for part in (TRAIN, VALIDATION, TEST)] == [[4, 6], [5], [3]]
    assert split.tied_users == 0


def test_nobody_is_left_without_train_items() -> None:
    data = events((0, 1, 1), (1, 1, 1), (1, 2, 2), (2, 1, 1), (2, 2, 2), (2, 3, 3))
    split = leave_one_out(chronological(data, no_ties(data)))
    assert [items_of(split, user, TRAIN) for user in (0, 1, 2)] == [[1], [1], [1]]
    assert [items_of(split, user, VALIDATION) for user in (0, 1, 2)] == [[], [], [2]]
    assert [items_of(split, user, TEST) for user in (0, 1, 2)] == [[], [2], [3]]


def test_a_missing_time_is_older_than_any_known_one() -> None:
    data = events((0, 1, None), (0, 2, -5), (0, 3, 7))
    split = leave_one_out(chronological(data, no_ties(data)))
    assert [items_of(split, 0, part) for part in (TRAIN, VALIDATION, TEST)] == [[1], [2], [3]]


def test_the_latest_row_of_a_pair_is_kept() -> None:
    data = one_per_pair(events((0, 1, 5), (0, 1, 9), (0, 1, None), (1, 1, 3), (0, 2, None)))
    rows = sorted(zip(data.user.tolist(), data.item.tolist(), data.time.tolist(), strict=True))
    assert rows == [(0, 1, 9), (0, 2, 0), (1, 1, 3)]


def test_users_below_the_minimum() -> None:
    data = events((0, 1, 1), (2, 1, 1), (2, 2, 1))
    assert active_users(data, 4, 2).tolist() == [False, False, True, False]
    assert active_users(data, 4, 0).tolist() == [True, False, True, False]


def test_ties_are_counted_where_they_decide() -> None:
    data = events(*[(0, item, 5) for item in range(4)], *[(1, item, item) for item in range(1, 5)])
    early = events((2, 1, 5), (2, 2, 5), (2, 3, 6), (2, 4, 7))
    assert leave_one_out(chronological(data, no_ties(data))).tied_users == 1
    assert leave_one_out(chronological(early, no_ties(early))).tied_users == 0


def test_ties_do_not_favour_low_ids_and_ignore_the_order_of_the_file() -> None:
    users, items = 2_000, 10
    rows = [(user, item, 5) for user in range(users) for item in range(items)]
    users_keys = user_keys(str(user) for user in range(users))
    item_keys = user_keys(str(item) for item in range(items))
    counts = []
    for data in (events(*rows), events(*rows[::-1])):
        split = leave_one_out(chronological(data, hashed_ties(0, data, users_keys, item_keys)))
        chosen = split.events.item[split.part == TEST]
        counts.append(np.bincount(chosen, minlength=items))
    assert np.array_equal(counts[0], counts[1])
    # 200 expected for each item, standard deviation 13.4.
    assert counts[0].min() > 140
    assert counts[0].max() < 260
    other = leave_one_out(chronological(data, hashed_ties(1, data, users_keys, item_keys)))
    assert not np.array_equal(counts[0], np.bincount(other.events.item[other.part == TEST]))


def test_the_published_tie_rule_takes_the_item_seen_first() -> None:
    data = events((0, 7, 5), (0, 2, 5), (1, 2, 5), (1, 9, 5), (0, 9, 5))
    split = leave_one_out(chronological(data, earliest_item_last(data)), validation=False)
    assert items_of(split, 0, TEST) == [7]
    assert items_of(split, 1, TEST) == [2]
    assert items_of(split, 0, VALIDATION) == []


def test_the_tie_hash_depends_on_seed_user_and_item() -> None:
    keys = user_keys(["a", "b"])
    data = events((0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 1))
    assert len(set(hashed_ties(0, data, keys, keys).tolist())) == 4
    assert hashed_ties(0, data, keys, keys)[1] == mix(0, "tie", keys[0:1], keys[1:2])[0]
