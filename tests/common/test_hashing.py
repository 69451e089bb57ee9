"""Counter-based randomness: pure, vectorised, and random enough."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedrecgel.common.hashing import integers, mix, normal, uniform, user_keys

KEYS = mix("test", np.arange(20_000))


def test_pinned_values_keep_old_runs_repeatable() -> None:
    """A change here changes every result there is."""
    assert int(mix(0)) == 0xE220A8397B1DCDAF  # SplitMix64's first output for seed 0
    assert int(mix(1, 2)) == 13608149317741381227
    assert int(mix("a")) == 4192132519135618423
    assert int(user_keys(["u1"])[0]) == 15378189911849802130


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_scalars_and_arrays_give_the_same_keys(parts: list[int]) -> None:
    arrays = [np.array([part], dtype=np.int64) for part in parts]
    assert int(mix(*parts)) == int(mix(*arrays)[0])


def test_order_and_number_of_parts_matter() -> None:
    keys = [mix(1, 2), mix(2, 1), mix(1), mix(1, 2, 0), mix(0, 1, 2), mix("1", 2), mix(12)]
    assert len({int(key) for key in keys}) == len(keys)


def test_parts_broadcast() -> None:
    table = mix("x", np.arange(3)[:, None], np.arange(4))
    assert table.shape == (3, 4)
    assert table.dtype == np.uint64
    assert int(table[2, 1]) == int(mix("x", 2, 1))
    assert len(np.unique(table)) == 12


def test_a_draw_does_not_depend_on_what_is_drawn_beside_it() -> None:
    order = np.random.default_rng(0).permutation(len(KEYS))
    assert np.array_equal(normal(KEYS)[order], normal(KEYS[order]))


def test_user_keys_are_those_of_the_id_alone() -> None:
    keys = user_keys(["a", "b", "ä", ""])
    assert keys.dtype == np.uint64
    assert len(np.unique(keys)) == 4
    assert keys[1] == user_keys(["b"])[0]
    assert len(user_keys([])) == 0


def test_uniform_is_uniform_and_inside_the_open_interval() -> None:
    draws = uniform(KEYS)
    assert draws.min() > 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > 1e-3
    ends = uniform(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert 0 < ends[0] < ends[1] < 1
    assert integers(np.array([2**64 - 1], dtype=np.uint64), 10)[0] == 9


def test_normal_is_normal() -> None:
    draws = normal(KEYS)
    assert np.isfinite(draws).all()
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    assert np.isfinite(normal(np.array([0, 2**64 - 1], dtype=np.uint64))).all()


@pytest.mark.parametrize("high", [1, 2, 7, 100])
def test_integers_are_even_and_in_range(high: int) -> None:
    draws = integers(KEYS, high)
    assert draws.dtype == np.int64
    counts = np.bincount(draws, minlength=high)
    assert len(counts) == high
    if high > 1:
        assert stats.chisquare(counts).pvalue > 1e-3


def test_integers_take_a_bound_for_each_key() -> None:
    high = np.arange(1, 5)
    draws = integers(mix("bounds", np.arange(1000)[:, None], np.arange(4)), high)
    assert (draws < high).all()
    assert (draws.max(axis=0) == high - 1).all()


def test_neighbouring_streams_are_independent() -> None:
    users = np.arange(5_000)
    one, two = (uniform(mix("negatives", 0, round, users)) for round in (1, 2))
    assert abs(np.corrcoef(one, two)[0, 1]) < 0.06
    assert abs(np.corrcoef(one[:-1], one[1:])[0, 1]) < 0.06
