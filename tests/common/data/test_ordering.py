"""Sorting by several keys is what numpy's lexsort does."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecgel.common.data.ordering import order_by

SMALL, LARGE = st.integers(-3, 3), st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(
    st.tuples(SMALL, st.booleans(), st.one_of(SMALL, LARGE), st.integers(0, 2**64 - 1)),
    max_size=30,
)


@given(ROWS, st.booleans())
@settings(max_examples=150, deadline=None)
def test_as_lexsort(rows: list[tuple[int, bool, int, int]], fractions: bool) -> None:
    kinds = (np.int64, np.bool_, np.float64 if fractions else np.int64, np.uint64)
    keys = [np.array([row[k] for row in rows], dtype=kind) for k, kind in enumerate(kinds)]
    assert order_by(*keys).tolist() == np.lexsort(keys[::-1]).tolist()
    assert order_by(*keys[:2]).tolist() == np.lexsort(keys[1::-1]).tolist()
