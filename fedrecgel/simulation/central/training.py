"""What the central methods learn from: the train pairs of all users, each once."""

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.evaluation import BUDGET
from fedrecgel.common.item_lists import Ints, ItemLists

__all__ = ["Training", "pairs_once"]


class Training:
    """Train interactions of a data set as the central methods need them."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.num_users, self.num_items = dataset.num_users, dataset.num_items
        self.neighbours: dict[float, tuple[Tensor, Tensor]] = {}
        """Most similar items by how they were damped: the costly part, used by several trials."""
        self.trained: dict[str, dict[int, Sequence[Tensor]]] = {}
        """Tensors after each number of epochs, by what else decides them; as ``neighbours``."""

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
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Users and items of all pairs, user after user."""
        users, items = self.histories.entries(np.arange(self.num_users))
        return torch.from_numpy(users), torch.from_numpy(items)

    @cached_property
    def by_item(self) -> Tensor:
        """(M, N) sparse: 1 where the user knows the item."""
        users, items = self.pairs
        shape = (self.num_items, self.num_users)
        # Sparse times dense costs as much as there are interactions, not users x items.
        return torch.sparse_coo_tensor(
            torch.stack([items, users]), torch.ones(len(items)), shape, check_invariants=False
        ).coalesce()

    def together(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Blocks of items (B,), and how many users have both: (B, M); with itself, `counts`."""
        users, items = self.pairs
        size = max(1, BUDGET // (4 * max(self.num_users, self.num_items)))
        order = torch.argsort(items, stable=True)
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        for start in range(0, self.num_items, size):
            end = min(start + size, self.num_items)
            part = order[ends[start] : ends[end]]
            dense = torch.zeros(self.num_users, end - start)
            dense[users[part], items[part] - start] = 1.0
            yield torch.arange(start, end), torch.sparse.mm(self.by_item, dense).T


def pairs_once(items: NDArray[np.integer], offsets: Ints, num_items: int) -> ItemLists:
    """Return the same lists, sorted and without repetition."""
    users = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    pairs = np.unique(users * num_items + np.asarray(items, dtype=np.int64))
    owner, once = np.divmod(pairs, num_items)
    return ItemLists(once, np.searchsorted(owner, np.arange(len(offsets))))
