"""Local only: everybody's own model, trained alone; what federation adds is what is above it.

Each user has a vector and an item table of their own, which start as everybody's do, as in FedMF
without any communication. From one's own interactions alone one unseen item cannot be told from
another, so held-out items are ranked by chance. A number far above chance tells of negatives that
were drawn with knowledge of the held-out items (``leaky``): then everything but these is pushed
down.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.evaluation import PersonalView
from fedrecgel.common.hashing import mix
from fedrecgel.common.interactions import Interactions, Ints
from fedrecgel.common.item_lists import ItemLists, join_lists
from fedrecgel.common.samples import draw_samples
from fedrecgel.simulation.central.factors import NEGATIVES, SEED, pairs_of
from fedrecgel.simulation.central.training import Training
from fedrecgel.simulation.central.views import CatalogueView

__all__ = ["LocalView", "local_only"]

EPOCHS, DIM, RATE = 20, 8, 0.5
_PAIRS = 2_000_000
"""Samples of all epochs of the users that are trained at a time: bounds the memory."""


def local_only(training: Training, params: Mapping[str, float], split: str) -> PersonalView:
    """Train everybody alone; with ``leaky`` 1 no held-out item is ever a negative."""
    return _train(training, bool(params.get("leaky", 0)))


class LocalView(CatalogueView):
    """Everybody's vector times one table, but for the pairs whose own row was trained.

    Parameters
    ----------
    users, items
        (N, d) trained vectors and (M, d) the table that all started from.
    pairs, scores
        (P,) ``user * M + item``, ascending, and the score of each.
    """

    def __init__(self, users: Tensor, items: Tensor, pairs: Ints, scores: Tensor) -> None:
        self.num_users, self.num_items = len(users), len(items)
        self._users, self._items, self._pairs, self._scores = users, items, pairs, scores

    def catalogue(self, users: Tensor) -> Tensor:
        scores = self._users[users] @ self._items.T
        for row, user in enumerate(users.tolist()):
            first, last = np.searchsorted(
                self._pairs, [user * self.num_items, (user + 1) * self.num_items]
            )
            own = torch.from_numpy(self._pairs[first:last] - user * self.num_items)
            scores[row, own] = self._scores[first:last]
        return scores


def _train(training: Training, leaky: bool) -> LocalView:
    data = pairs_of(training)
    if leaky:
        data = replace(data, barred=_held_out(training.dataset))
    generator = torch.Generator().manual_seed(int(mix("local", SEED)) & 0x7FFFFFFF)
    items = 0.1 * torch.randn(data.num_items, DIM, generator=generator)
    vectors = 0.1 * torch.randn(1, DIM, generator=generator).expand(data.num_users, DIM).clone()
    found, scores = [np.empty(0, dtype=np.int64)], [torch.empty(0)]
    for part in _parts(data):
        pairs, trained, value = _alone(data.take(part), items, vectors[part])
        vectors[part] = trained
        found.append(pairs + int(part[0]) * data.num_items)
        scores.append(value)
    return LocalView(vectors, items, np.concatenate(found), torch.cat(scores))


def _held_out(dataset: Dataset) -> tuple[Ints, Ints]:
    both = join_lists(*(ItemLists(*dataset.held_out(split)) for split in ("validation", "test")))
    return np.asarray(both.items, np.int64), np.asarray(both.offsets, np.int64)


def _parts(data: Interactions) -> Iterator[Ints]:
    """Users in order, cut so that memory is bounded."""
    work = np.cumsum(data.counts * (1 + NEGATIVES) * EPOCHS) // _PAIRS
    for number in np.unique(work):
        yield np.flatnonzero(work == number)


def _alone(data: Interactions, items: Tensor, users: Tensor) -> tuple[Ints, Tensor, Tensor]:
    """Gradient descent of some users, all samples of an epoch in a step.

    Returns
    -------
    Pairs whose row was trained, the users' vectors, and the scores of the pairs.
    """
    epochs = [
        draw_samples(data, num_negatives=NEGATIVES, loss="mean", seed=SEED, round=epoch)
        for epoch in range(1, EPOCHS + 1)
    ]
    owners = [np.repeat(np.arange(data.num_users), each.counts) for each in epochs]
    drawn = [who * data.num_items + each.items for who, each in zip(owners, epochs, strict=True)]
    pairs = np.unique(np.concatenate(drawn))
    rows = items[torch.from_numpy(pairs % data.num_items)]
    # The mean over a user's samples hardly moves a row that is one of them.
    number = torch.from_numpy(data.counts * (1.0 + NEGATIVES)).float()
    for who, what, each in zip(owners, drawn, epochs, strict=True):
        owner = torch.from_numpy(who)
        place = torch.from_numpy(np.searchsorted(pairs, what))
        vector, row = users[owner], rows[place]
        total, positive = (torch.from_numpy(w).float() for w in (each.total, each.positive))
        residual = (total * torch.sigmoid((vector * row).sum(1)) - positive)[:, None]
        rows[place] = row - RATE * number[owner, None] * residual * vector
        users = users - RATE * torch.zeros_like(users).index_add_(0, owner, residual * row)
    scores = (users[torch.from_numpy(pairs // data.num_items)] * rows).sum(1)
    return pairs, users, scores
