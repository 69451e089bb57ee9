"""One user's list, equal to the one that evaluation makes."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedrecgel.common.errors import FedRecError
from fedrecgel.common.evaluation import ItemLists, top_k
from fedrecgel.serve.best import best_items

SCORES = st.sampled_from([-float("inf"), -1.0, 0.0, 0.5, 2.0, float("inf")])


@dataclass(frozen=True)
class OneUser:
    """Scores of one user as a `PersonalView`."""

    scores: Tensor
    num_users: int = 1

    @property
    def num_items(self) -> int:
        return len(self.scores)

    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        return self.scores[items]

    def catalogue(self, users: Tensor) -> Tensor:
        return self.scores[None, :]


@given(st.lists(SCORES, min_size=1, max_size=12), st.integers(1, 15), st.data())
def test_the_list_is_that_of_top_k(scores: list[float], k: int, data: st.DataObject) -> None:
    items = st.lists(st.integers(0, len(scores) - 1), max_size=len(scores))
    excluded = np.array(data.draw(items), dtype=np.int64)
    row = torch.tensor(scores)
    lists = ItemLists(excluded, np.array([0, len(excluded)]))
    expected = top_k(OneUser(row), np.array([0]), k, lists)[0]
    found = best_items(row, k, excluded)
    assert found.tolist() == expected[expected >= 0].tolist()
    assert row.tolist() == scores


def test_scores_that_are_not_numbers_are_refused() -> None:
    with pytest.raises(FedRecError, match="scores of 1 of 1 users are not numbers"):
        best_items(torch.tensor([1.0, float("nan")]), 1, np.zeros(0, dtype=np.int64))
