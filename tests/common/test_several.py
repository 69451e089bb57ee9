import math
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.common.errors import FedRecError
from fedrecgel.common.evaluation import excluded_items, held_out, rank_in_catalogue
from fedrecgel.common.item_lists import ItemLists, join_lists
from fedrecgel.common.metrics import RankCounts, metric, metric_names
from fedrecgel.common.rank_several import HeldOutLists, held_out_lists, rank_several
from fedrecgel.common.several import SeveralCounts, metric_of_several, values_of_several

NAMES = metric_names([1, 2, 3, 10])


class TableView:
    def __init__(self, table):
        self.table = torch.as_tensor(np.asarray(table, dtype=np.float32))
        self.num_users, self.num_items = self.table.shape

    def candidates(self, users, items):
        return self.table[users[:, None], items]

    def catalogue(self, users):
        return self.table[users]


def lists_of(rows):
    offsets = np.concatenate([[0], np.cumsum([len(r) for r in rows])])
    return ItemLists(np.array([i for r in rows for i in r], dtype=np.int32), offsets)


def held_of(positives, excluded, candidates=None):
    rivals = np.full((len(positives), 1), -1) if candidates is None else np.array(candidates)
    return HeldOutLists(lists_of(positives), rivals, lists_of(excluded))


def plain(name, order, positives):
    """The metric of one list without ties, from its definition."""
    kind, k = name.split("@")
    k = int(k)
    hits = [rank for rank, item in enumerate(order, 1) if item in positives and rank <= k]
    best = min(k, len(positives))
    if kind == "hr":
        return float(bool(hits))
    if kind == "mrr":
        return 1 / hits[0] if hits else 0.0
    if kind == "recall":
        return len(hits) / len(positives)
    if kind == "precision":
        return len(hits) / k
    if kind == "map":
        return sum((place + 1) / rank for place, rank in enumerate(hits)) / best
    ideal = sum(1 / math.log2(rank + 1) for rank in range(1, best + 1))
    return sum(1 / math.log2(rank + 1) for rank in hits) / ideal


def expected(name, scores, positives, excluded):
    """Mean over all orders of the items that agree with the scores."""
    items = [i for i in range(len(scores)) if i not in set(excluded) - set(positives)]
    orders = [
        order
        for order in permutations(items)
        if all(scores[a] >= scores[b] for a, b in pairwise(order))
    ]
    return sum(plain(name, order, set(positives)) for order in orders) / len(orders)


@st.composite
def tasks(draw):
    items = draw(st.integers(2, 5))
    scores = [draw(st.sampled_from([0.0, 1.0, 2.0, -np.inf])) for _ in range(items)]
    positives = draw(st.lists(st.integers(0, items - 1), min_size=1, unique=True))
    others = [i for i in range(items) if i not in positives]
    excluded = draw(st.lists(st.sampled_from(others))) if others else []
    return scores, positives, excluded


@settings(deadline=None, max_examples=60)
@given(tasks())
def test_every_metric_is_the_mean_over_all_orders_of_ties(task):
    scores, positives, excluded = task
    counts = rank_several(TableView([scores]), held_of([positives], [excluded]), full=True)
    for name in NAMES:
        assert metric_of_several(name, counts)[0] == pytest.approx(
            expected(name, scores, positives, excluded), abs=1e-12
        )


@settings(deadline=None, max_examples=30)
@given(tasks(), st.integers(1, 100))
def test_among_candidates_equals_a_catalogue_without_the_others(task, budget):
    scores, positives, excluded = task
    rivals = [i for i in range(len(scores)) if i not in positives and i not in excluded]
    padded = rivals + [-1] * (6 - len(rivals))
    held = held_of([positives], [excluded], [padded])
    full = rank_several(TableView([scores]), held, full=True, budget=budget)
    sampled = rank_several(TableView([scores]), held, full=False)
    for name in NAMES:
        np.testing.assert_allclose(
            metric_of_several(name, full), metric_of_several(name, sampled), atol=1e-12
        )


def test_one_positive_each_is_the_metric_of_one_positive():
    rng = np.random.default_rng(0)
    table = rng.integers(0, 4, (50, 30)).astype(float)
    positives = rng.integers(0, 30, 50)
    held = held_of([[p] for p in positives.tolist()], [[]] * 50)
    several = rank_several(TableView(table), held, full=True)
    single = RankCounts(several.greater, several.ties)
    for name in metric_names([1, 5, 10]):
        np.testing.assert_allclose(
            metric_of_several(name, several), metric(name, single), atol=1e-12
        )


def test_users_without_a_positive_are_left_out_and_blocks_change_nothing():
    rng = np.random.default_rng(1)
    table = rng.integers(0, 5, (9, 12)).astype(float)
    positives = [rng.choice(12, u % 4, replace=False).tolist() for u in range(9)]
    held = held_of(positives, [[]] * 9)
    whole = rank_several(TableView(table), held, full=True)
    parts = rank_several(TableView(table), held, full=True, budget=1)
    assert whole.users.tolist() == [u for u in range(9) if u % 4]
    assert whole.positives.tolist() == [u % 4 for u in range(9) if u % 4]
    for name in ("greater", "ties", "positives_greater", "positives_ties", "owner"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))


def test_an_independent_library_agrees():  # U065
    trec = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(7)
    table = np.stack([rng.permutation(40) for _ in range(30)]).astype(float)
    positives = [rng.choice(40, 1 + u % 8, replace=False).tolist() for u in range(30)]
    truth = {f"u{u}": {f"d{i}": 1 for i in row} for u, row in enumerate(positives)}
    lists = {f"u{u}": {f"d{i}": s for i, s in enumerate(r.tolist())} for u, r in enumerate(table)}
    theirs_of = {"ndcg": "ndcg_cut", "recall": "recall", "precision": "P", "hr": "success"}
    asked = {f"{name}.5,10" for name in theirs_of.values()} | {"map_cut.5,10", "recip_rank"}
    theirs = trec.RelevanceEvaluator(truth, asked).evaluate(lists)
    ours = rank_several(TableView(table), held_of(positives, [[]] * 30), full=True)

    def column(name):
        return np.array([theirs[u][name] for u in truth])

    for k in (5, 10):
        for kind, name in theirs_of.items():
            found = metric_of_several(f"{kind}@{k}", ours)
            np.testing.assert_allclose(found, column(f"{name}_{k}"), rtol=1e-9, err_msg=kind)
        # trec_eval divides by all positives, we by those that k places can hold.
        share = ours.positives / np.minimum(ours.positives, k)
        found = metric_of_several(f"map@{k}", ours)
        np.testing.assert_allclose(found, column(f"map_cut_{k}") * share, rtol=1e-9)
    np.testing.assert_allclose(metric_of_several("mrr@40", ours), column("recip_rank"), rtol=1e-9)


def test_a_perfect_list_has_one_whatever_k_is():  # U065: the right ideal
    held = held_of([[0, 1, 2]], [[]])
    counts = rank_several(TableView([[9.0, 8.0, 7.0, 1.0, 0.0]]), held, full=True)
    for kind in ("ndcg", "map", "hr", "mrr"):
        for k in (1, 2, 3, 5):
            assert metric_of_several(f"{kind}@{k}", counts)[0] == pytest.approx(1)
    assert metric_of_several("recall@2", counts)[0] == pytest.approx(2 / 3)
    assert metric_of_several("precision@5", counts)[0] == pytest.approx(3 / 5)


def test_means_carry_their_errors():
    held = held_of([[0], [0, 1]], [[], []])
    counts = rank_several(TableView([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]), held, full=True)
    cell = values_of_several(counts, ["precision@1"])["precision@1"]
    assert cell == {"value": 0.5, "se": pytest.approx(0.5)}


def test_nan_scores_are_an_error():
    with pytest.raises(FedRecError, match="scores of 1 of 1 users"):
        rank_several(TableView([[np.nan, 0.0]]), held_of([[1]], [[]]), full=True)


def test_nobody_to_rank():
    counts = rank_several(TableView([[0.0, 1.0]]), held_of([[]], [[]]), full=True)
    assert isinstance(counts, SeveralCounts)
    assert len(counts) == 0
    assert metric_of_several("map@5", counts).tolist() == []


# --- held-out lists of a data set


def test_what_is_left_out_where_users_have_several():  # U062, U066
    data = make_dataset([[0, 1]], validation=[[2, 3]], test=[[4, 5]], num_items=8)
    rows = np.array([0])
    for split, lists, single in (
        ("validation", {0, 1}, {0, 1, 2, 3}),
        ("test", {0, 1, 2, 3}, {0, 1, 2, 3, 4, 5}),
    ):
        assert set(held_out_lists(data, split).excluded.entries(rows)[1].tolist()) == lists
        # One positive is asked about: the user's others do not stand in its way.
        assert set(excluded_items(data, split).entries(rows)[1].tolist()) == single
    assert held_out_lists(data, "test", rows).positives.items.tolist() == [4, 5]


def test_the_next_item_is_not_pushed_down_by_the_users_other_held_out_items():
    data = make_dataset([[0]], validation=[[1]], test=[[2, 3]], num_items=5)
    held = held_out(data, "test")
    view = TableView([[9.0, 9.0, 1.0, 5.0, 0.0]])
    assert rank_in_catalogue(view, held.positives, held.excluded).greater.tolist() == [0]
    both = rank_several(view, held_out_lists(data, "test"), full=True)
    assert both.greater.tolist() == [1, 0]


def test_joined_lists_keep_each_users_items_in_order():
    a, b = lists_of([[1, 2], [], [3]]), lists_of([[4], [5], []])
    joined = join_lists(a, b, a)
    assert joined.offsets.tolist() == [0, 5, 6, 8]
    assert joined.items.tolist() == [1, 2, 4, 1, 2, 5, 3, 3]
