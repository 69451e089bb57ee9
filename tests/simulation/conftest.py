"""Data that a central model can learn something from."""

from collections.abc import Callable

import numpy as np
import pytest

from fedrecgel.common.data.dataset import Dataset, make_dataset


@pytest.fixture(scope="session")
def two_tastes() -> Callable[..., Dataset]:
    """Return a maker of data: ``two_tastes(users)``.

    Even users like even items, odd users odd ones: a central model can know, popularity not.
    """

    def make(users: int = 40, items: int = 24) -> Dataset:
        rng = np.random.default_rng(0)
        rows = [2 * rng.choice(items // 2, 8, replace=False) + u % 2 for u in range(users)]
        return make_dataset(
            [row[:6].tolist() for row in rows],
            validation=[int(row[6]) for row in rows],
            test=[int(row[7]) for row in rows],
            num_items=items,
        )

    return make
