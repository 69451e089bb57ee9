import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.simulation.lists import describe_lists, gini, novelty


def test_coverage_novelty_and_gini_by_hand():
    # Four users; item 0 is known to all, item 1 to two, items 2 and 3 to one and to nobody.
    data = make_dataset([[0, 1], [0, 1], [0, 2], [0]], [-1] * 4, [3] * 4, num_items=4)
    found = describe_lists(np.array([[0, 1], [1, -1], [2, 3]]), data)
    assert found["items_listed"] == 4
    assert found["coverage"] == 1
    assert found["novelty"] == pytest.approx((0 + 1 + 1 + 2 + 2) / 5)  # log2 of 4/4, 4/2, 4/1
    assert found["gini"] == pytest.approx(gini(np.array([1, 2, 1, 1])))


def test_gini_of_even_and_of_one_sided_exposure():
    assert gini(np.full(7, 3)) == pytest.approx(0)
    assert gini(np.array([0, 0, 0, 8])) == pytest.approx(3 / 4)  # 1 - 1/M
    assert gini(np.zeros(3, dtype=int)) is None


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20).filter(any))
def test_gini_is_half_the_mean_difference_over_the_mean(exposure):
    x = np.array(exposure, dtype=float)
    slow = np.abs(x[:, None] - x[None, :]).mean() / (2 * x.mean())
    assert gini(np.array(exposure)) == pytest.approx(slow)


def test_lists_of_nobody_are_undefined():
    data = make_dataset([[0]], [-1], [-1], num_items=2)
    found = describe_lists(np.empty((0, 10), dtype=np.int64), data)
    assert found["coverage"] is found["novelty"] is found["gini"] is None
    assert novelty(np.array([[-1]]), np.array([1]), 1) is None
