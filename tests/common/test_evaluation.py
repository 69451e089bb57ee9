import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.common.errors import FedRecError
from fedrecgel.common.evaluation import (
    ItemLists,
    excluded_items,
    held_out,
    rank_among_candidates,
    rank_and_list,
    rank_in_catalogue,
    top_k,
)
from fedrecgel.common.metrics import hit_ratio


class TableView:
    """Scores given as a table (users, items)."""

    def __init__(self, table):
        self.table = torch.as_tensor(np.asarray(table, dtype=np.float32))
        self.num_users, self.num_items = self.table.shape
        self.rows_asked = []

    def candidates(self, users, items):
        return self.table[users[:, None], items]

    def catalogue(self, users):
        self.rows_asked.append(len(users))
        return self.table[users]


def lists_of(*rows):
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
    return ItemLists(np.array([i for r in rows for i in r], dtype=np.int32), offsets)


def slow_ranking(scores, positive, excluded):
    rivals = [i for i in range(len(scores)) if i != positive and i not in set(excluded)]
    greater = sum(1 for i in rivals if scores[i] > scores[positive])
    return greater, sum(1 for i in rivals if scores[i] == scores[positive])


def slow_list(scores, k, excluded):
    allowed = [i for i in range(len(scores)) if i not in set(excluded)]
    best = sorted(allowed, key=lambda i: (-scores[i], i))[:k]
    return best + [-1] * (k - len(best))


@st.composite
def ranking_tasks(draw):
    users, items = draw(st.integers(1, 6)), draw(st.integers(1, 9))
    level = st.sampled_from([-np.inf, -1.0, 0.0, 0.5, 2.0, np.inf])
    table = [[draw(level) for _ in range(items)] for _ in range(users)]
    positives = [draw(st.integers(-1, items - 1)) for _ in range(users)]
    item_lists = st.lists(st.integers(0, items - 1), max_size=12)
    excluded = [draw(item_lists) for _ in range(users)]
    return np.array(table), np.array(positives), excluded


@settings(deadline=None)
@given(ranking_tasks(), st.integers(1, 200), st.integers(0, 11))
def test_full_ranking_equals_a_plain_loop(task, budget, k):
    table, positives, excluded = task
    counts, lists = rank_and_list(
        TableView(table), positives, lists_of(*excluded), k, budget=budget
    )
    ranked = [u for u in range(len(table)) if positives[u] >= 0]
    expected = [slow_ranking(table[u], positives[u], excluded[u]) for u in ranked]
    assert counts.users.tolist() == ranked
    assert list(zip(counts.greater.tolist(), counts.ties.tolist(), strict=True)) == expected
    assert lists.tolist() == [slow_list(table[u], k, excluded[u]) for u in ranked]


@settings(deadline=None)
@given(ranking_tasks(), st.integers(0, 11), st.randoms())
def test_lists_of_any_users_in_any_order(task, k, random):
    table, _, excluded = task
    users = [random.randrange(len(table)) for _ in range(4)]
    found = top_k(TableView(table), np.array(users), k, lists_of(*excluded))
    assert found.dtype == np.int64
    assert found.tolist() == [slow_list(table[u], k, excluded[u]) for u in users]


@settings(deadline=None)
@given(ranking_tasks(), st.randoms())
def test_the_order_of_candidates_does_not_matter(task, random):
    table, positives, excluded = task
    # Distinct candidates other than the positive, padded at the end.
    rows = [
        [i for i in dict.fromkeys(e) if i != p] for e, p in zip(excluded, positives, strict=True)
    ]
    padded = np.array([row + [-1] * (12 - len(row)) for row in rows])
    shuffled = padded.copy()
    for row in shuffled:
        random.shuffle(row)
    a = rank_among_candidates(TableView(table), positives, padded)
    b = rank_among_candidates(TableView(table), positives, shuffled, budget=1)
    expected = [
        (
            sum(table[u, i] > table[u, positives[u]] for i in rows[u]),
            sum(table[u, i] == table[u, positives[u]] for i in rows[u]),
        )
        for u in a.users
    ]
    assert list(zip(a.greater, a.ties, strict=True)) == expected
    for x, y in ((a.greater, b.greater), (a.ties, b.ties), (a.users, b.users)):
        np.testing.assert_array_equal(x, y)


def test_a_perfect_scorer_is_first_everywhere():
    table = np.eye(4, 6)
    positives, excluded = np.arange(4), lists_of([], [], [], [])
    counts = rank_in_catalogue(TableView(table), positives, excluded)
    assert hit_ratio(counts, 1).tolist() == [1, 1, 1, 1]


def test_a_constant_scorer_is_at_chance():
    view = TableView(np.zeros((1, 100)))
    counts = rank_in_catalogue(view, np.array([7]), lists_of([]))
    assert hit_ratio(counts, 10)[0] == pytest.approx(0.1)
    counts = rank_among_candidates(view, np.array([7]), np.arange(10, 60)[None, :])
    assert hit_ratio(counts, 10)[0] == pytest.approx(10 / 51)


def test_train_items_do_not_stand_above_the_positive():  # U066
    # A memorising model: 30 train items at the top, then the test item.
    scores = np.concatenate([np.full(30, 9.0), [5.0], np.zeros(69)])
    view = TableView(scores[None, :])
    seen = lists_of(range(30))
    assert rank_in_catalogue(view, np.array([30]), seen).greater.tolist() == [0]
    assert rank_in_catalogue(view, np.array([30]), lists_of([])).greater.tolist() == [30]
    assert not set(top_k(view, np.array([0]), 10, seen)[0]) & set(range(30))


def test_the_positive_counts_even_where_it_is_among_the_excluded():  # duplicates, protocol paper
    view = TableView([[3.0, 2.0, 1.0]])
    counts = rank_in_catalogue(view, np.array([1]), lists_of([1, 0, 0, 1]))
    assert (counts.greater.tolist(), counts.ties.tolist()) == ([0], [0])


def test_a_real_score_of_minus_infinity_is_listed_and_an_excluded_item_is_not():
    view = TableView([[-np.inf, 1.0, -np.inf]])
    assert top_k(view, np.array([0]), 3, lists_of([0])).tolist() == [[1, 2, -1]]


def test_nan_scores_are_an_error_that_counts_the_users():
    table = np.zeros((5, 4))
    table[[1, 3], 2] = np.nan
    view, positives = TableView(table), np.array([0, 0, 0, 0, -1])
    nothing = lists_of([], [], [], [], [])
    with pytest.raises(FedRecError, match="scores of 2 of 4 users"):
        rank_in_catalogue(view, positives, nothing, budget=1)
    with pytest.raises(FedRecError, match="scores of 2 of 5 users"):
        top_k(view, np.arange(5), 2, nothing)
    candidates = np.array([[2, -1], [2, 1], [1, -1], [1, -1], [1, 2]])
    with pytest.raises(FedRecError, match="scores of 1 of 4 users"):
        rank_among_candidates(view, positives, candidates)


def test_nan_in_a_padded_place_is_nobodys_score():
    table = np.zeros((1, 3))
    table[0, 0] = np.nan  # padding is scored as item 0 and left out
    counts = rank_among_candidates(TableView(table), np.array([1]), np.array([[2, -1]]))
    assert (counts.greater.tolist(), counts.ties.tolist()) == ([0], [1])


def test_infinite_scores_rank_like_any_other():
    view = TableView([[np.inf, np.inf, 1.0, -np.inf]])
    counts = rank_in_catalogue(view, np.array([0]), lists_of([]))
    assert (counts.greater.tolist(), counts.ties.tolist()) == ([0], [1])


def test_blocks_hold_no_more_scores_than_the_budget():
    view = TableView(np.random.default_rng(0).normal(size=(10, 8)))
    rank_in_catalogue(view, np.zeros(10, dtype=int), lists_of(*[[]] * 10), budget=3 * 8 * 4)
    assert view.rows_asked == [3, 3, 3, 1]


def test_nobody_to_rank():
    view = TableView(np.zeros((2, 3)))
    none = np.array([-1, -1])
    counts, lists = rank_and_list(view, none, lists_of([], []), 10)
    assert len(counts) == 0
    assert lists.shape == (0, 10)
    assert len(rank_among_candidates(view, none, np.full((2, 5), -1))) == 0


def test_read_only_arrays_will_do():
    view = TableView(np.arange(6.0).reshape(2, 3))
    positives, candidates, users = np.array([0, 1]), np.array([[1], [2]]), np.array([1, 0])
    excluded = lists_of([2], [2])
    for array in (positives, candidates, users, excluded.items, excluded.offsets):
        array.setflags(write=False)
    assert rank_among_candidates(view, positives, candidates).greater.tolist() == [1, 1]
    assert rank_in_catalogue(view, positives, excluded).greater.tolist() == [1, 0]
    assert top_k(view, users, 1, excluded).tolist() == [[1], [1]]


def small_dataset():
    return make_dataset(
        [[0, 1], [2], [3, 4, 5]], validation=[2, -1, 6], test=[3, 0, -1], num_items=8
    )


def test_validation_items_are_left_out_only_when_testing():
    data = small_dataset()
    for split, expected in {
        "validation": [[0, 1], [2], [3, 4, 5]],
        "test": [[0, 1, 2], [2], [3, 4, 5, 6]],
    }.items():
        found = excluded_items(data, split)
        rows = [found.items[found.offsets[u] : found.offsets[u + 1]].tolist() for u in range(3)]
        assert rows == expected


def test_held_out_of_some_users_in_any_order():
    data = small_dataset()
    held = held_out(data, "test", np.array([2, 0]))
    assert held.positives.tolist() == [-1, 3]
    assert held.excluded.items.tolist() == [3, 4, 5, 6, 0, 1, 2]
    assert held.excluded.offsets.tolist() == [0, 4, 7]
    np.testing.assert_array_equal(held.candidates, data.test_candidates[[2, 0]])


def test_an_unknown_split_is_named():
    with pytest.raises(FedRecError, match="unknown split 'train'"):
        excluded_items(small_dataset(), "train")


def test_half_precision_scores():
    view = TableView([[1.0, 3.0, 2.0]])
    view.table = view.table.to(torch.bfloat16)
    assert rank_in_catalogue(view, np.array([0]), lists_of([1])).greater.tolist() == [1]
    assert top_k(view, np.array([0]), 2, lists_of([1])).tolist() == [[2, 0]]
