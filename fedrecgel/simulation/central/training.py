"""What the central methods learn from: the train pairs of all users, each once."""

from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import DataError
from fedrecgel.common.evaluation import BUDGET, Ints, ItemLists

__all__ = ["MAX_ITEMS", "Training", "pairs_once"]

MAX_ITEMS = 20_000
"""Largest catalogue for a table of items x items: 1.6 GB in float32, of which three may exist."""


class Training:
    """Train interactions of a data set as the central methods need them."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.num_users, self.num_items = dataset.num_users, dataset.num_items

    @cached_property
    def histories(self) -> ItemLists:
        """Each user's train items, sorted and without repetition."""
        offsets = np.asarray(self.dataset.train_offsets, dtype=np.int64)
        return pairs_once(self.dataset.train_items, offsets, self.num_items)

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """(M,) users of each item."""
        return np.bincount(self.histories.items, minlength=self.num_items)

    @cached_property
    def together(self) -> Tensor:
        """(M, M) float32: how many users have both items; the diagonal is `counts`."""
        if self.num_items > MAX_ITEMS:
            raise DataError(
                f"{self.dataset.name} has {self.num_items:,} items; a table of items x items is "
                f"made up to {MAX_ITEMS:,}: leave out the methods item-knn and ease"
            )
        table = torch.zeros(self.num_items, self.num_items)
        size = max(1, BUDGET // (4 * self.num_items))
        for start in range(0, self.num_users, size):
            rows = np.arange(start, min(start + size, self.num_users))
            which, items = (torch.from_numpy(part) for part in self.histories.entries(rows))
            dense = torch.zeros(len(rows), self.num_items)
            dense[which, items] = 1.0
            shape = (self.num_items, len(rows))
            # Sparse times dense: the cost grows with the interactions, not with users x items.
            sparse = torch.sparse_coo_tensor(
                torch.stack([items, which]), torch.ones(len(items)), shape, check_invariants=False
            )
            table += torch.sparse.mm(sparse, dense)
        return table


def pairs_once(items: NDArray[np.integer], offsets: Ints, num_items: int) -> ItemLists:
    """Return the same lists, sorted and without repetition."""
    users = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    pairs = np.unique(users * num_items + np.asarray(items, dtype=np.int64))
    owner, once = np.divmod(pairs, num_items)
    return ItemLists(once, np.searchsorted(owner, np.arange(len(offsets))))
