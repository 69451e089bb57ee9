import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedrecgel.common.errors import FedRecError, ReplyError
from fedrecgel.common.metrics import (
    NAMES,
    MetricSums,
    RankCounts,
    hit_ratio,
    metric,
    metric_names,
    ndcg,
)


@st.composite
def rank_counts(draw, min_size=0):
    size = draw(st.integers(min_size, 30))
    numbers = arrays(np.int64, size, elements=st.integers(0, 120))
    return RankCounts(draw(numbers), draw(numbers))


GAIN = {
    "hr": lambda rank, k: 1.0,
    "ndcg": lambda rank, k: 1.0 / math.log2(rank + 1),
    "mrr": lambda rank, k: 1.0 / rank,
    "recall": lambda rank, k: 1.0,
    "precision": lambda rank, k: 1.0 / k,
    "map": lambda rank, k: 1.0 / rank,
}


def slow_metric(name, greater, ties):
    """Average over the equally likely ranks, in plain Python."""
    kind, k = name.split("@")
    ranks = range(greater + 1, greater + ties + 2)
    return sum(GAIN[kind](r, int(k)) for r in ranks if r <= int(k)) / len(ranks)


def test_ndcg_and_hit_ratio_at_known_ranks():  # U065
    counts = RankCounts([0, 1, 2, 9, 10], [0, 0, 0, 0, 0])
    np.testing.assert_allclose(ndcg(counts, 10), [1, 0.6309, 0.5, 0.2891, 0], atol=5e-5)
    np.testing.assert_array_equal(hit_ratio(counts, 10), [1, 1, 1, 1, 0])


def test_a_certain_rank_has_the_exact_discount():
    counts = RankCounts(np.arange(20), np.zeros(20))
    assert ndcg(counts, 20).tolist() == [1 / np.log2(rank + 1) for rank in range(1, 21)]


def test_a_tie_for_the_first_two_places_is_half_of_each():
    counts = RankCounts([0], [1])
    assert hit_ratio(counts, 1).tolist() == [0.5]
    assert ndcg(counts, 2)[0] == pytest.approx((1 + 1 / math.log2(3)) / 2)


def test_a_tie_across_the_cutoff_counts_in_part():
    counts = RankCounts([8], [3])  # ranks 9, 10, 11 or 12
    assert hit_ratio(counts, 10).tolist() == [0.5]
    assert ndcg(counts, 10)[0] == pytest.approx((1 / math.log2(10) + 1 / math.log2(11)) / 4)


def test_all_tied_is_chance():
    counts = RankCounts([0], [99])
    assert hit_ratio(counts, 10)[0] == pytest.approx(0.1)
    assert hit_ratio(counts, 100)[0] == pytest.approx(1.0)
    assert ndcg(counts, 10)[0] == pytest.approx(
        sum(1 / math.log2(r + 1) for r in range(1, 11)) / 100
    )


@given(rank_counts())
def test_every_metric_equals_the_average_over_ranks(counts):
    for name in metric_names([1, 5, 10, 100]):
        slow = [slow_metric(name, g, t) for g, t in zip(counts.greater, counts.ties, strict=True)]
        np.testing.assert_allclose(metric(name, counts), slow, rtol=1e-12, atol=1e-12)


@given(rank_counts())
def test_metrics_lie_between_zero_and_one_and_grow_with_k(counts):
    for kind in ("hr", "ndcg"):
        each = np.stack([metric(f"{kind}@{k}", counts) for k in (5, 10, 15, 20)])
        assert np.all((each >= 0) & (each <= 1))
        assert np.all(np.diff(each, axis=0) >= -1e-12)
    assert np.all(metric("ndcg@10", counts) <= metric("hr@10", counts) + 1e-12)


@given(rank_counts(), st.integers(1, 20))
def test_another_tie_never_helps(counts, more):
    worse = RankCounts(counts.greater, counts.ties + more)
    for name in metric_names([1, 10, 50]):
        assert np.all(metric(name, worse) <= metric(name, counts) + 1e-12)


def test_an_independent_library_agrees():  # U065
    trec = pytest.importorskip("pytrec_eval")
    rng = np.random.default_rng(5)
    scores = {f"u{u}": rng.permutation(30).astype(float) for u in range(40)}
    truth = {u: {"d0": 1} for u in scores}
    lists = {u: {f"d{i}": s for i, s in enumerate(row.tolist())} for u, row in scores.items()}
    theirs_of = {
        "ndcg": "ndcg_cut",
        "recall": "recall",
        "precision": "P",
        "map": "map_cut",
        "hr": "success",
    }
    asked = {f"{name}.5,10" for name in theirs_of.values()} | {"recip_rank"}
    theirs = trec.RelevanceEvaluator(truth, asked).evaluate(lists)
    ours = RankCounts([(row > row[0]).sum() for row in scores.values()], np.zeros(40))
    for kind, name in theirs_of.items():
        for k in (5, 10):
            expected = [theirs[u][f"{name}_{k}"] for u in scores]
            np.testing.assert_allclose(metric(f"{kind}@{k}", ours), expected, rtol=1e-12)
    expected = [theirs[u]["recip_rank"] for u in scores]  # of the whole list of 30
    np.testing.assert_allclose(metric("mrr@30", ours), expected, rtol=1e-12)


@pytest.mark.parametrize("name", ["hr", "hr@", "hr@0", "hr@-1", "auc@10", "HR@10"])
def test_an_unknown_metric_is_named(name):
    with pytest.raises(FedRecError, match=f"unknown metric '{name}'"):
        metric(name, RankCounts([0], [0]))


@given(rank_counts(), rank_counts())
def test_sums_of_parts_are_the_sum_of_the_whole(a, b):
    together = MetricSums.from_counts(RankCounts.concatenate([a, b]))
    added = MetricSums.from_counts(a).add(MetricSums.from_counts(b))
    assert added.users == together.users == len(a) + len(b)
    np.testing.assert_allclose(added.totals, together.totals, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(added.squares, together.squares, rtol=1e-12, atol=1e-12)


@given(rank_counts(min_size=2), st.randoms())
def test_the_order_of_users_does_not_matter(counts, random):
    order = list(range(len(counts)))
    random.shuffle(order)
    shuffled = MetricSums.from_counts(RankCounts(counts.greater[order], counts.ties[order]))
    straight = MetricSums.from_counts(counts)
    for name in NAMES:
        assert shuffled.value(name) == pytest.approx(straight.value(name), abs=1e-12)


def test_mean_and_standard_error_of_four_users():
    counts = RankCounts([0, 0, 0, 50], [0, 0, 0, 0])
    values = MetricSums.from_counts(counts).values()["hr@10"]
    assert values["value"] == 0.75
    assert values["se"] == pytest.approx(math.sqrt(0.25 / 4))  # variance 0.25 with ddof 1


@given(rank_counts(min_size=2))
def test_standard_error_equals_numpys(counts):
    each = ndcg(counts, 10)
    values = MetricSums.from_counts(counts).values()["ndcg@10"]
    expected = each.std(ddof=1) / math.sqrt(len(each))
    assert values["se"] == pytest.approx(expected, abs=1e-7)


def test_too_few_users_leave_a_value_undefined():
    assert MetricSums().values()["hr@10"] == {"value": None, "se": None}
    assert math.isnan(MetricSums().value("hr@10"))
    one = MetricSums.from_counts(RankCounts([0], [0])).values()["hr@10"]
    assert one == {"value": 1.0, "se": None}


@given(rank_counts())
def test_flat_numbers_come_back(counts):
    sums = MetricSums.from_counts(counts)
    flat = {**sums.to_flat("sampled."), **MetricSums().to_flat("full."), "loss": 0.3}
    assert all(type(number) is float for number in flat.values())
    back = MetricSums.from_flat(flat, "sampled.")
    assert back.users == sums.users
    np.testing.assert_array_equal(back.totals, sums.totals)
    np.testing.assert_array_equal(back.squares, sums.squares)


@pytest.mark.parametrize(
    ("key", "bad"),
    [
        ("users", None),
        ("users", -1.0),
        ("users", 1.5),
        ("hr@10.sum", math.nan),
        ("hr@10.sum", math.inf),
        ("hr@10.sum", "1"),
        ("hr@10.sum", 3.5),
        ("hr@10.squares", -0.5),
        ("ndcg@5.squares", 2.5),
    ],
)
def test_impossible_sums_are_refused(key, bad):
    flat = MetricSums.from_counts(RankCounts([0, 20], [0, 0])).to_flat()
    with pytest.raises(ReplyError, match="left out"):
        MetricSums.from_flat({**flat, key: bad})
