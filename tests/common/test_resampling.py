import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecgel.common.errors import FedRecError
from fedrecgel.common.metrics import RankCounts
from fedrecgel.common.resampling import (
    bootstrap_interval,
    holm,
    paired_difference,
    paired_test,
    sign_flip_p,
)

# --- intervals


def test_bootstrap_agrees_with_resampling_users_one_by_one():
    rng = np.random.default_rng(0)
    each = rng.choice([0.0, 0.5, 1.0], 200, p=[0.5, 0.2, 0.3])
    means = [rng.choice(each, 200).mean() for _ in range(2000)]
    found = bootstrap_interval(each)
    np.testing.assert_allclose(found, np.quantile(means, [0.025, 0.975]), atol=0.01)


def test_bootstrap_agrees_with_an_independent_library():
    stats = pytest.importorskip("scipy.stats")
    each = np.random.default_rng(1).random(60)
    theirs = stats.bootstrap((each,), np.mean, method="percentile", rng=np.random.default_rng(2))
    interval = theirs.confidence_interval
    np.testing.assert_allclose(bootstrap_interval(each), [interval.low, interval.high], atol=0.008)


def test_a_normal_interval_and_the_bootstrap_agree_with_many_users():
    each = (np.random.default_rng(3).random(5000) < 0.3).astype(float)
    se = each.std(ddof=1) / math.sqrt(5000)
    low, high = bootstrap_interval(each)
    assert low == pytest.approx(each.mean() - 1.96 * se, abs=0.15 * se)
    assert high == pytest.approx(each.mean() + 1.96 * se, abs=0.15 * se)


def test_intervals_of_few_or_equal_users():
    assert bootstrap_interval(np.array([1.0])) is None
    assert bootstrap_interval(np.array([0.5, 0.5, 0.5])) == (0.5, 0.5)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30))
def test_an_interval_lies_within_the_values_and_is_the_same_twice(values):
    each = np.array(values)
    low, high = bootstrap_interval(each)
    assert each.min() - 1e-12 <= low <= high <= each.max() + 1e-12
    assert bootstrap_interval(each) == (low, high)


# --- tests


def test_sign_flips_of_four_users_by_hand():
    # All four better by the same: of 16 sign patterns two are as far from 0.
    assert sign_flip_p(np.full(4, 0.5)) == pytest.approx(2 / 16, abs=0.01)


def test_sign_flips_agree_with_an_independent_library():
    stats = pytest.importorskip("scipy.stats")
    delta = np.random.default_rng(4).normal(0.15, 1, 40).round(1)
    theirs = stats.permutation_test(
        (delta, np.zeros(40)),
        lambda a, b, axis: np.mean(a - b, axis=axis),
        permutation_type="samples",
        n_resamples=10_000,
        vectorized=True,
        rng=np.random.default_rng(5),
    )
    assert sign_flip_p(delta) == pytest.approx(theirs.pvalue, abs=0.02)


def test_no_difference_is_never_significant():
    assert sign_flip_p(np.zeros(10)) == 1.0
    assert sign_flip_p(np.array([1.0, -1.0])) == 1.0


def test_false_alarms_are_as_rare_as_promised():
    rng = np.random.default_rng(6)
    p = [sign_flip_p(rng.normal(size=30), seed=seed, flips=500) for seed in range(400)]
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.03)


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


# --- differences


def test_paired_difference_by_hand():
    a = RankCounts([0, 0, 30, 30], [0, 0, 0, 0])
    b = RankCounts([0, 30, 30, 30], [0, 0, 0, 0])
    found = paired_difference(a, b)["hr@10"]
    assert found["value"] == 0.25
    assert found["changed"] == found["better"] == 0.25
    assert found["se"] == pytest.approx(math.sqrt(0.25 / 4))  # differences 0, 1, 0, 0
    assert found["effect"] == pytest.approx(0.25 / 0.5)
    assert (found["low"], found["high"]) == (0.0, 0.75)


def test_paired_difference_of_equal_runs_is_exactly_zero():
    a = RankCounts([0, 4, 9], [0, 1, 3])
    for cell in paired_difference(a, a).values():
        assert cell["effect"] is None
        assert {cell[name] for name in ("value", "se", "low", "high", "changed", "better")} == {0}


def test_paired_difference_of_other_users_is_refused():
    with pytest.raises(FedRecError, match="different users"):
        paired_difference(RankCounts([0, 0], [0, 0], [0, 1]), RankCounts([0, 0], [0, 0], [0, 2]))


def test_paired_difference_with_too_few_users_is_undefined():
    none, one = np.empty(0), np.array([1.0])
    assert set(paired_test(none, none).values()) == {None}
    found = paired_test(one, one)
    assert found["value"] == 0
    assert found["se"] is found["low"] is found["effect"] is None
