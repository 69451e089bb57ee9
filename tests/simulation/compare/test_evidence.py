import numpy as np
import pytest

from fedrecgel.simulation.compare.evidence import paired_bootstrap, t_interval
from fedrecgel.simulation.compare.gather import METRICS, Measured, Row, against_best


def test_the_interval_over_seeds_is_students():
    # Mean 2, deviation 1, three seeds: 2 -+ 4.303 * 1 / sqrt(3).
    assert t_interval([1.0, 2.0, 3.0]) == pytest.approx((-0.4843, 4.4843), abs=1e-4)
    assert t_interval([1.0, 3.0]) == pytest.approx((2 - 12.706, 2 + 12.706))
    assert t_interval([5.0]) is None


def test_quantiles_of_students_t_are_scipys():
    stats = pytest.importorskip("scipy.stats")
    for number in (2, 7, 31):
        values = np.zeros(number)
        values[0] = 1.0
        low, high = t_interval(values.tolist())
        half = stats.t.ppf(0.975, number - 1) * values.std(ddof=1) / np.sqrt(number)
        assert (high - low) / 2 == pytest.approx(half, rel=2e-4)


def test_a_method_does_not_differ_from_itself():
    each = np.random.default_rng(0).random((3, 50))
    (one,) = paired_bootstrap(each[:1], [each[:1]])
    assert (one["value"], one["low"], one["high"], one["p"]) == (0, 0, 0, 1)


def test_a_method_that_is_better_for_every_user_has_the_smallest_p():
    base = np.zeros((2, 40))
    better, same = paired_bootstrap(base, [base + 0.5, base], resamples=999)
    assert better["p"] == pytest.approx(2 / 1000)
    assert (better["value"], better["low"], better["high"]) == (0.5, 0.5, 0.5)
    assert same["p"] == 1


def test_the_bootstrap_is_paired_by_user():
    # Users differ wildly, the methods hardly: paired it is sure, unpaired it would be lost.
    hard = np.random.default_rng(1).random((1, 400))
    (one,) = paired_bootstrap(hard, [hard + 0.001 * (np.arange(400) % 2)])
    assert one["p"] < 0.01
    assert one["low"] > 0.0003


def test_seeds_that_disagree_make_it_less_sure():
    users = 1000
    base = np.zeros((3, users))
    steady, wild = base + 0.1, base + np.array([[0.4], [-0.3], [0.2]])
    found = paired_bootstrap(base, [steady, wild])
    assert found[0]["value"] == pytest.approx(found[1]["value"])
    assert found[0]["p"] < 0.001
    assert found[1]["p"] > 0.05


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_methods_that_differ_by_their_seeds_alone_are_rarely_told_apart(seeds):
    """Of 200 pairs of equal methods about ten may have p < 0.05, whatever the number of seeds."""
    rng = np.random.default_rng(seeds)
    users = rng.random(100) * 0.1
    found = 0
    for _ in range(200):
        # What a seed does to everybody is ten times what users differ by in the mean.
        one, other = (users + rng.normal(0, 0.1, (seeds, 1)) for _ in range(2))
        found += paired_bootstrap(one, [other], resamples=400)[0]["p"] < 0.05
    assert found <= 14


def test_a_difference_of_four_standard_errors_is_mostly_found_with_three_seeds():
    rng, found = np.random.default_rng(0), 0
    for _ in range(100):
        # One standard error of a mean is 0.1 / sqrt(3), of the difference 0.082.
        one, other = (rng.normal(0, 0.1, (3, 1)) + np.zeros((1, 20)) for _ in range(2))
        found += paired_bootstrap(one, [other + 0.33], resamples=400)[0]["p"] < 0.05
    assert found > 60


def test_one_seed_beside_others_several_is_not_judged():
    rows = [row("a", "federated", 5), row("b", "federated", 2), row("c", "federated", 0, seeds=1)]
    against_best(rows)
    assert rows[2].tests == {}
    assert rows[1].tests["full.ndcg@10"] == {"best": True}
    alone = [row("a", "federated", 5, seeds=1), row("b", "federated", 2, seeds=1)]
    against_best(alone)
    assert alone[1].tests["full.ndcg@10"] == {"best": True}


def row(label, kind, level, seeds=2):
    """All users have the same rank, so every resample has the same mean."""
    users = np.arange(30)
    rank = np.full(30, level)
    none = np.zeros(30, dtype=np.int64)
    ranks = np.column_stack([users, rank, none, rank, none])
    counted = {"users": {"all": 30, "eligible": 30, "never_trained": 3}}
    measured = Measured.of([ranks] * seeds, [counted] * seeds)
    return Row(label, kind, "done", seeds=list(range(seeds)), measured=measured)


def test_rows_are_tested_against_the_best_federated_one_with_holms_correction():
    rows = [row("a", "federated", 5), row("b", "federated", 2), row("c", "federated", 12)]
    rows += [row("ease", "reference", 0)]
    against_best(rows)
    a, b, c, ease = (one.tests["full.ndcg@10"] for one in rows)
    assert b == {"best": True}
    smallest = 2 / 5001
    # Two rivals, both at the smallest p: Holm takes the first twice, the second no less than it.
    assert a["p_holm"] == c["p_holm"] == pytest.approx(2 * smallest)
    assert ease["p_holm"] == pytest.approx(smallest)  # references are a family of their own
    assert ease["value"] == pytest.approx(1 - 0.5)  # ranks 1 and 3: 1 / log2(2) and 1 / log2(4)
    assert a["against"] == ease["against"] == "b"
    assert set(rows[0].tests) == set(METRICS)


def test_a_row_says_means_over_seeds_and_no_single_user():
    told = row("a", "federated", 2).to_json()
    assert told["metrics"]["full.ndcg@10"]["mean"] == 0.5
    assert told["metrics"]["full.ndcg@10"]["seeds"] == [0.5, 0.5]
    assert (told["evaluated"], told["never_trained"]) == (30, 0.1)
    assert "measured" not in told
