"""Candidates: distinct, never interacted with, drawn evenly, whatever the company."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecgel.common.data import candidates
from fedrecgel.common.data.candidates import draw_candidates
from fedrecgel.common.hashing import user_keys


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5), st.data())
@settings(max_examples=60, deadline=None)
def test_candidates_are_distinct_and_unknown(
    num_items: int, count: int, users: int, data: st.DataObject
) -> None:
    known = [data.draw(st.lists(st.integers(0, num_items - 1), max_size=60)) for _ in range(users)]
    user = np.repeat(np.arange(users), [len(items) for items in known])
    item = np.array([i for items in known for i in items], dtype=np.int64)
    keys = user_keys(str(u) for u in range(users))
    drawn = draw_candidates(1, "test", keys, user, item, num_items, count)
    assert drawn.shape == (users, count)
    for items, row in zip(known, drawn.tolist(), strict=True):
        real = [i for i in row if i >= 0]
        assert len(real) == min(count, num_items - len(set(items)))
        assert row[len(real) :] == [-1] * (count - len(real))
        assert len(set(real)) == len(real)
        assert not set(real) & set(items)


def test_every_unknown_item_is_equally_likely() -> None:
    users = 4_000
    user = np.repeat(np.arange(users), 2)
    drawn = draw_candidates(
        0, "test", user_keys(str(u) for u in range(users)), user, np.tile([3, 7], users), 12, 4
    )
    counts = np.bincount(drawn.ravel(), minlength=12)
    assert counts[[3, 7]].tolist() == [0, 0]
    # 1,600 expected for each of the other ten, standard deviation 31.
    others = np.delete(counts, [3, 7])
    assert others.min() > 1_450
    assert others.max() < 1_750


def test_a_user_is_independent_of_the_others() -> None:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 50, 500), rng.integers(0, 200, 500)
    keys = user_keys(str(u) for u in range(50))
    together = draw_candidates(0, "test", keys, user, item, 200, 99)
    alone = draw_candidates(
        0, "test", keys[7:8], np.zeros((user == 7).sum(), np.int64), item[user == 7], 200, 99
    )
    assert np.array_equal(together[7], alone[0])
    block = candidates._BLOCK
    try:
        candidates._BLOCK = 3
        assert np.array_equal(together, draw_candidates(0, "test", keys, user, item, 200, 99))
    finally:
        candidates._BLOCK = block


def test_validation_and_test_are_independent_draws() -> None:
    keys, nothing = user_keys(["a", "b"]), np.empty(0, dtype=np.int64)
    one = draw_candidates(0, "validation", keys, nothing, nothing, 10_000, 99)
    other = draw_candidates(0, "test", keys, nothing, nothing, 10_000, 99)
    seeded = draw_candidates(1, "test", keys, nothing, nothing, 10_000, 99)
    assert len(np.intersect1d(one[0], other[0])) < 10
    assert len(np.intersect1d(other[0], seeded[0])) < 10
    assert len(np.intersect1d(other[0], other[1])) < 10
