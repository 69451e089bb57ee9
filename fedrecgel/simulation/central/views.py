"""How the central methods score users, in blocks of bounded memory."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding_bag

from fedrecgel.common.evaluation import BUDGET
from fedrecgel.common.item_lists import Ints, ItemLists

__all__ = [
    "CatalogueView",
    "FactorView",
    "ItemWeightView",
    "NeighbourView",
    "RecentView",
    "ScoreView",
]


class CatalogueView:
    """A `PersonalView` that scores candidates by looking them up in scores of the catalogue."""

    num_users: int
    num_items: int

    def catalogue(self, users: Tensor) -> Tensor:
        raise NotImplementedError

    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        size = max(1, BUDGET // (4 * self.num_items))
        parts = zip(torch.split(users, size), torch.split(items, size), strict=True)
        return torch.cat([self.catalogue(who).gather(1, what) for who, what in parts])


class ItemWeightView(CatalogueView):
    """A user's score of an item is the sum of the weights from the items they know.

    Parameters
    ----------
    weights
        (M, M) row i: what knowing item i says about every item.
    """

    def __init__(self, histories: ItemLists, weights: Tensor) -> None:
        self.num_users, self.num_items = len(histories), weights.shape[1]
        self._histories, self._weights = histories, weights

    def catalogue(self, users: Tensor) -> Tensor:
        known = self._histories.select(users.numpy())
        offsets = torch.from_numpy(np.asarray(known.offsets[:-1], dtype=np.int64))
        items = torch.from_numpy(np.asarray(known.items, dtype=np.int64))
        return embedding_bag(items, self._weights, offsets, mode="sum")


class FactorView(CatalogueView):
    """Inner products of user and item vectors, (N, D) and (M, D)."""

    def __init__(self, users: Tensor, items: Tensor) -> None:
        self.num_users, self.num_items = len(users), len(items)
        self._users, self._items = users, items

    def catalogue(self, users: Tensor) -> Tensor:
        return self._users[users] @ self._items.T


class NeighbourView(CatalogueView):
    """Every item a user knows votes for some others.

    Parameters
    ----------
    nearest, votes
        (M, K) which items an item votes for, and with what.
    """

    def __init__(self, histories: ItemLists, nearest: Tensor, votes: Tensor) -> None:
        self.num_users, self.num_items = len(histories), len(nearest)
        self._histories, self._nearest, self._votes = histories, nearest, votes

    def catalogue(self, users: Tensor) -> Tensor:
        which, items = (torch.from_numpy(part) for part in self._histories.entries(users.numpy()))
        cells = which[:, None] * self.num_items + self._nearest[items]
        scores = torch.zeros(len(users) * self.num_items)
        scores.index_add_(0, cells.flatten(), self._votes[items].flatten())
        return scores.view(len(users), self.num_items)


class ScoreView(CatalogueView):
    """Scores that are there already, (M, N): of every item for every user."""

    def __init__(self, scores: Tensor) -> None:
        self.num_items, self.num_users = scores.shape
        self._scores = scores

    def catalogue(self, users: Tensor) -> Tensor:
        return self._scores[:, users].T


class RecentView(CatalogueView):
    """Popularity in the time before each user's held-out event, and never after it.

    Parameters
    ----------
    items
        (T,) items of all train interactions in the order of time.
    first, last
        (N,) for every user the range of ``items`` that counts for them.
    """

    def __init__(self, items: Ints, first: Ints, last: Ints, num_items: int) -> None:
        self.num_users, self.num_items = len(first), num_items
        self._items, self._first, self._last = items, first, last

    def catalogue(self, users: Tensor) -> Tensor:
        who = users.numpy()
        scores = np.zeros((len(who), self.num_items), dtype=np.float32)
        counts = np.zeros(self.num_items, dtype=np.int64)
        at_first = at_last = 0
        # In the order of time the window only moves on: what enters is added, what leaves is taken.
        for row in np.lexsort((self._last[who], self._first[who])):
            first, last = int(self._first[who[row]]), int(self._last[who[row]])
            self._move(counts, at_last, last, 1)
            self._move(counts, at_first, first, -1)
            at_first, at_last = first, last
            scores[row] = counts
        return torch.from_numpy(scores)

    def _move(self, counts: NDArray[np.int64], start: int, end: int, sign: int) -> None:
        if end < start:
            start, end, sign = end, start, -sign
        part = self._items[start:end]
        if len(part) > self.num_items // 8:
            counts += sign * np.bincount(part, minlength=self.num_items)
        else:
            np.add.at(counts, part, sign)
