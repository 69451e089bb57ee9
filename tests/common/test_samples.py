"""Negatives and weights of a round: distinct, never trained on, counted, and unbiased."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecgel.common.hashing import user_keys
from fedrecgel.common.interactions import Interactions, ragged_take
from fedrecgel.common.samples import CHUNK, Samples, draw_negatives, draw_samples


def interactions(
    rows: list[list[int]], num_items: int, names: list[str] | None = None
) -> Interactions:
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    items = np.array([item for row in rows for item in row], dtype=np.int32)
    keys = user_keys(names or [f"u{u}" for u in range(len(rows))])
    return Interactions(items, offsets, keys, num_items)


@st.composite
def groups(draw: st.DrawFn) -> Interactions:
    """A catalogue of 1 to 12 items and up to 5 users, repetitions and empty users allowed."""
    num_items = draw(st.integers(1, 12))
    row = st.lists(st.integers(0, num_items - 1), max_size=15)
    return interactions(draw(st.lists(row, min_size=1, max_size=5)), num_items)


# --- interactions --------------------------------------------------------------------------------


def test_take_keeps_each_users_items_and_key() -> None:
    data = interactions([[3, 1], [], [0, 0, 2]], 4)
    some = data.take(np.array([2, 0, 1]))
    assert some.items.tolist() == [0, 0, 2, 3, 1]
    assert some.offsets.tolist() == [0, 3, 5, 5]
    assert some.keys.tolist() == data.keys[[2, 0, 1]].tolist()
    assert some.counts.tolist() == [3, 2, 0]
    assert some.owners.tolist() == [0, 0, 0, 1, 1]


def test_distinct_items_are_sorted_and_single() -> None:
    items, offsets = interactions([[3, 1, 3], [], [0]], 4).distinct
    assert items.tolist() == [1, 3, 0]
    assert offsets.tolist() == [0, 2, 2, 3]


def test_ragged_take_of_nothing_is_empty() -> None:
    flat, offsets = ragged_take(np.arange(3), np.array([0, 3]), np.array([], dtype=np.int64))
    assert flat.tolist() == []
    assert offsets.tolist() == [0]


# --- negatives -----------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(data=groups(), wanted=st.integers(0, 6), round=st.integers(1, 3))
def test_negatives_are_distinct_and_never_trained_on(
    data: Interactions, wanted: int, round: int
) -> None:
    found = draw_negatives(data, wanted, 0, round)
    assert found.shape == (len(data.items), wanted)
    for user in range(data.num_users):
        own = set(data.items[data.offsets[user] : data.offsets[user + 1]].tolist())
        for row in found[data.offsets[user] : data.offsets[user + 1]].tolist():
            drawn = [item for item in row if item >= 0]
            # Exactly as many as asked for, or all there are (U057).
            assert len(drawn) == min(wanted, data.num_items - len(own))
            assert len(set(drawn)) == len(drawn)
            assert not set(drawn) & own
            assert all(0 <= item < data.num_items for item in drawn)
            assert row == drawn + [-1] * (wanted - len(drawn))


def test_barred_items_are_never_drawn() -> None:
    """Ten items, three interactions of user 0 and one of user 1; four and nothing barred."""
    items, offsets = np.array([0, 1, 2, 5]), np.array([0, 3, 4])
    barred = (np.array([3, 7, 8, 9]), np.array([0, 4, 4]))
    data = Interactions(items, offsets, user_keys(["a", "b"]), 10, barred)
    drawn = [draw_negatives(data, 3, 0, round) for round in range(50)]
    assert {item for rows in drawn for item in rows[:3].ravel().tolist()} == {4, 5, 6}
    assert {item for rows in drawn for item in rows[3].tolist()} == set(range(10)) - {5}
    reversed_users = data.take(np.array([1, 0]))
    assert draw_negatives(reversed_users, 3, 0, 7)[1:].tolist() == drawn[7][:3].tolist()


def test_every_unseen_item_is_drawn_equally_often() -> None:
    """The held-out item is among them: leaving it out would give it away (U063)."""
    data = interactions([[2, 5, 2, 7] for _ in range(3000)], 10)
    held_out = 4
    found = draw_negatives(data, 3, "seed", 1)
    counts = np.bincount(found.ravel(), minlength=10)
    assert counts[[2, 5, 7]].tolist() == [0, 0, 0]
    unseen = counts[[0, 1, 3, 4, 6, 8, 9]]
    expected = found.size / 7
    assert abs(unseen - expected).max() < 5 * np.sqrt(expected)
    assert counts[held_out] > 0
    # Also by place in the row: the second and third draw are not bent by the first.
    for column in found.T:
        counts = np.bincount(column, minlength=10)[[0, 1, 3, 4, 6, 8, 9]]
        assert abs(counts - len(column) / 7).max() < 5 * np.sqrt(len(column) / 7)


def test_negatives_are_drawn_anew_each_round_and_for_each_interaction() -> None:
    data = interactions([[0, 0, 0, 0]], 1000)
    one, two = (draw_negatives(data, 4, 0, round) for round in (1, 2))
    assert len(np.unique(one)) > 12
    assert not np.array_equal(one, two)
    assert np.array_equal(one, draw_negatives(data, 4, 0, 1))


def test_what_a_user_draws_depends_on_the_id_and_not_on_the_company() -> None:
    rows, names = [[1, 2], [3], [4, 5, 6]], ["ann", "bob", "cid"]
    data = interactions(rows, 50, names)
    shuffled = interactions([rows[2], rows[0]], 50, ["cid", "ann"])
    together, apart = draw_negatives(data, 4, 0, 1), draw_negatives(shuffled, 4, 0, 1)
    assert np.array_equal(together[3:6], apart[:3])
    assert np.array_equal(together[:2], apart[3:])
    other = draw_negatives(interactions(rows, 50, ["ann", "bob", "eve"]), 4, 0, 1)
    assert np.array_equal(together[:3], other[:3])
    assert not np.array_equal(together[3:], other[3:])


def test_users_with_almost_everything_terminate() -> None:
    """U057: ten items; A has all, B nine, C three."""
    data = interactions([list(range(10)), list(range(9)), [0, 1, 2]], 10)
    found = draw_negatives(data, 4, 0, 1)
    assert (found[:10] == -1).all()
    assert (found[10:19, 0] == 9).all()
    assert (found[10:19, 1:] == -1).all()
    assert (found[19:] >= 3).all()


# --- merged samples and weights ------------------------------------------------------------------


def draw(data: Interactions, negatives: int = 4, loss: str = "mean") -> Samples:
    return draw_samples(data, num_negatives=negatives, loss=loss, seed=0, round=1)


@settings(max_examples=200, deadline=None)
@given(data=groups(), wanted=st.integers(0, 4), loss=st.sampled_from(["mean", "chunked-sum"]))
def test_merged_samples_are_the_drawn_ones(data: Interactions, wanted: int, loss: str) -> None:
    samples = draw(data, wanted, loss)
    negatives = draw_negatives(data, wanted, 0, 1)
    for user in range(data.num_users):
        mine = slice(data.offsets[user], data.offsets[user + 1])
        positive = Counter(data.items[mine].tolist())
        both = positive + Counter(i for i in negatives[mine].ravel().tolist() if i >= 0)
        part = slice(samples.offsets[user], samples.offsets[user + 1])
        assert samples.items[part].tolist() == sorted(both)
        size = max(1, sum(both.values()))  # at most 75 samples here: one chunk
        np.testing.assert_allclose(
            samples.positive[part] * size, [positive[i] for i in sorted(both)], atol=1e-9
        )
        np.testing.assert_allclose(samples.total[part] * size, [both[i] for i in sorted(both)])


def test_a_user_without_interactions_has_no_samples() -> None:
    samples = draw(interactions([[], [1], []], 5))
    assert samples.counts.tolist() == [0, 5, 0]
    assert samples.offsets.tolist() == [0, 0, 5, 5]


def test_nobody_has_anything() -> None:
    samples = draw(interactions([[], []], 5))
    assert samples.counts.tolist() == [0, 0]
    assert len(samples.total) == 0


@pytest.mark.parametrize(("positives", "chunks"), [(25, 1), (26, 2), (51, 2), (52, 3), (100, 4)])
def test_each_chunk_of_128_weighs_one(positives: int, chunks: int) -> None:
    data = interactions([list(range(positives))], 2000)
    samples = draw(data, 4, "chunked-sum")
    size = positives * 5
    assert samples.total.sum() == pytest.approx(chunks)
    last = size - (chunks - 1) * CHUNK
    # Negatives may repeat between interactions, so weights of an item are sums of these two.
    single = samples.total[samples.items < positives]  # positives are single samples
    assert set(np.round(1 / single).astype(int)) <= {CHUNK, last}


def test_samples_fall_into_chunks_at_random() -> None:
    """The short last chunk, whose samples weigh more, is not always the same samples."""
    data = interactions([list(range(60))], 5000)
    heavy = []
    for round in (1, 2):
        found = draw_samples(data, num_negatives=4, loss="chunked-sum", seed=0, round=round)
        heavy.append({int(i) for i in found.items[(found.total > 1 / 100) & (found.items < 60)]})
    assert heavy[0] != heavy[1]
    assert all(heavy)


def test_mean_weighs_every_user_alike() -> None:
    data = interactions([[0], list(range(60)), [1, 1, 1]], 200)
    samples = draw(data, 4, "mean")
    sums = [
        samples.total[a:b].sum() for a, b in zip(samples.offsets, samples.offsets[1:], strict=False)
    ]
    np.testing.assert_allclose(sums, 1.0)
    positives = [
        samples.positive[a:b].sum()
        for a, b in zip(samples.offsets, samples.offsets[1:], strict=False)
    ]
    np.testing.assert_allclose(positives, 0.2)
