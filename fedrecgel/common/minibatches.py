"""Minibatches of many users at once, over local copies of the item rows that each user touches.

A user's samples of a round (positives and negatives, `fedrecgel.common.samples`) touch few rows of
an item table. A group of users with similar numbers of samples holds these rows as one padded
tensor of local copies (U, R + 1, d): each user steps their own, minibatch after minibatch, and the
difference to the downloaded rows is the update. Samples are shuffled anew in each epoch by hash of
(seed, round, epoch, user, place), so the grouping of users changes nothing.

Within a minibatch samples of the same item are merged to one with a weight, as in `Samples`: rows
of a minibatch are distinct, so stepping them is a plain assignment.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import embedding

from fedrecgel.common.hashing import mix
from fedrecgel.common.interactions import Interactions, Ints
from fedrecgel.common.samples import draw_negatives
from fedrecgel.common.scorers.base import ACCELERATED, Block

GROUP_ROWS = 1 << 14
"""Local rows held at once on a CPU when the user sets nothing; a matter of speed alone."""


@dataclass(frozen=True)
class Epoch:
    """Merged samples of all users and minibatches, flat.

    Attributes
    ----------
    place : (E,) int64
        Which of its user's local rows an entry reads.
    positive, total : (E,) float64
        Weights: a minibatch's weigh 1 in all, so losses are means over it.
    offsets : (number of minibatches + 1,) int64
    """

    place: Ints
    positive: NDArray[np.float64]
    total: NDArray[np.float64]
    offsets: Ints


@dataclass(frozen=True)
class Group:
    """Users trained side by side.

    Attributes
    ----------
    users : (U,) int64
        Positions in the data.
    items : (U, R + 1) int64
        Catalogue index of each local row; 0 in the padding, of which the last column is part.
    valid : (U, R + 1) bool
        False in the padding.
    steps : (U,)
        How many minibatches each user has, over all epochs.
    """

    users: Ints
    items: Tensor
    valid: Tensor
    steps: Tensor
    _source: "Minibatches" = field(repr=False)

    def blocks(self) -> Iterator[Block]:
        """Minibatches of all epochs in order: one of each user that has one left.

        ``index`` (U, S) counts over the flattened local rows. Entries of the padding weigh 0 and
        read the last row; so does all of a user who has no minibatch left in this epoch.
        """
        for epoch in self.epochs():
            yield from epoch

    def epochs(self) -> Iterator[Iterator[Block]]:
        """The same, epoch after epoch."""
        source = self._source
        if source.one_each:
            blocks = list(self._epoch(source.epoch(0)))
            yield from (iter(blocks) for _ in range(source.epochs))
        else:
            yield from (self._epoch(source.epoch(number)) for number in range(source.epochs))

    def _epoch(self, epoch: Epoch) -> Iterator[Block]:
        source, width = self._source, self.items.shape[1]
        first, last = source.batches[self.users], source.batches[self.users + 1]
        base = np.arange(len(self.users))[:, None] * width
        dtype, device = self.steps.dtype, self.items.device
        for step in range(int((last - first).max())):
            there = first + step < last
            batch = np.where(there, first + step, 0)
            start = epoch.offsets[batch]
            lengths = np.where(there, epoch.offsets[batch + 1] - start, 0)
            column = np.arange(lengths.max())
            valid = column < lengths[:, None]
            entry = np.where(valid, start[:, None] + column, 0)
            place = np.where(valid, epoch.place[entry], width - 1) + base
            weights = (np.where(valid, w[entry], 0.0) for w in (epoch.positive, epoch.total))
            yield Block(
                torch.from_numpy(place).to(device),
                *(torch.from_numpy(w).to(device, dtype) for w in weights),
            )


class Minibatches:
    """Samples of one round of ``data``, in minibatches.

    Parameters
    ----------
    size
        Samples in a minibatch; the last of a user's epoch may be smaller.
    epochs
        How often each user's samples are passed; they are the same in each, in another order.
    whole
        Local rows are the whole catalogue, row i item i, and not the touched rows alone.
    """

    def __init__(
        self,
        data: Interactions,
        *,
        num_negatives: int,
        size: int,
        epochs: int,
        seed: int,
        round: int,
        whole: bool = False,
    ) -> None:
        self.epochs, self._size, self._stream = epochs, size, (seed, round)
        self._data, self._whole = data, whole
        negatives = draw_negatives(data, num_negatives, seed, round)
        drawn = np.concatenate([data.items[:, None].astype(np.int64), negatives], axis=1)
        valid = drawn >= 0
        self._owners = np.broadcast_to(data.owners[:, None], drawn.shape)[valid]
        positive = np.zeros(drawn.shape, dtype=bool)
        positive[:, 0] = True
        self._positive = positive[valid]
        pairs, index = np.unique(self._owners * data.num_items + drawn[valid], return_inverse=True)
        owners, self.items = np.divmod(pairs, data.num_items)
        self.offsets = np.searchsorted(owners, np.arange(data.num_users + 1))
        self._place = self.items[index] if whole else index - self.offsets[self._owners]
        self._counts = np.bincount(self._owners, minlength=data.num_users)
        self.batches = np.concatenate([[0], np.cumsum(-(-self._counts // size))])
        self._known: dict[int, Epoch] = {}

    @cached_property
    def one_each(self) -> bool:
        """Whether every user has a single minibatch: then all epochs are the same."""
        return bool((self._counts <= self._size).all())

    def epoch(self, number: int) -> Epoch:
        """The minibatches of an epoch."""
        number = 0 if self.one_each else number
        if number not in self._known:
            self._known[number] = self._shuffled(number)
        return self._known[number]

    def _shuffled(self, number: int) -> Epoch:
        owners, counts = self._owners, self._counts
        start = (np.cumsum(counts) - counts)[owners]
        position = np.arange(len(owners)) - start
        key = mix("minibatches", *self._stream, number, self._data.keys[owners], position)
        # One sort by (user, hash): 40 bits of the hash are enough, equal ones keep their order.
        order = np.argsort((owners.astype(np.uint64) << 40) | (key >> 24), kind="stable")
        rank = np.empty_like(position)
        rank[order] = position
        batch = self.batches[owners] + rank // self._size
        stride = self._data.num_items
        entries = np.sort(((batch * stride + self._place) << 1) | self._positive)
        pair = entries >> 1
        begin = np.flatnonzero(np.concatenate([[True], pair[1:] != pair[:-1]]))
        which, place = np.divmod(pair[begin], stride)
        samples = np.bincount(batch, minlength=self.batches[-1])[which]
        total = np.diff(begin, append=len(entries)) / samples
        positive = np.add.reduceat(entries & 1, begin) / samples
        offsets = np.searchsorted(which, np.arange(self.batches[-1] + 1))
        return Epoch(place, positive, total, offsets)

    def entries(self, users: Ints) -> Ints:
        """Positions in ``items`` of all touched rows of these users, one after the other."""
        lengths = np.diff(self.offsets)[users]
        before = np.cumsum(lengths) - lengths
        places: Ints = np.arange(lengths.sum()) + np.repeat(self.offsets[users] - before, lengths)
        return places

    def groups(
        self, rows: int, dtype: torch.dtype, device: torch.device, beside: int = 0
    ) -> Iterator[Group]:
        """Groups of at most ``rows`` padded local rows (0: what suits the device).

        ``beside`` rows are counted for each user, for what else is held of them. A user alone may
        have more. Users are taken in order of their number of samples, so that padding is small.
        """
        rows = rows or GROUP_ROWS * (1 if device.type == "cpu" else ACCELERATED)
        touched = np.diff(self.offsets)
        order = np.argsort(self._counts, kind="stable")
        end = len(order)
        while end > 0:
            width = self._width(touched[order[end - 1]]) + beside
            begin = max(0, end - max(1, rows // width))
            yield self._group(order[begin:end], touched, dtype, device)
            end = begin

    def _width(self, touched: int) -> int:
        return (self._data.num_items if self._whole else int(touched)) + 1

    def _group(self, users: Ints, touched: Ints, dtype: torch.dtype, device: torch.device) -> Group:
        width = self._width(touched[users].max())
        column = np.arange(width)
        if self._whole:
            valid = np.broadcast_to(column < width - 1, (len(users), width))
            items = np.where(valid, column, 0)
        else:
            valid = column < touched[users][:, None]
            entry = np.where(valid, self.offsets[users][:, None] + column, 0)
            items = np.where(valid, self.items[entry], 0)
        steps = (self.batches[users + 1] - self.batches[users]) * self.epochs
        return Group(
            users,
            torch.from_numpy(items).to(device),
            torch.from_numpy(np.array(valid)).to(device),
            torch.from_numpy(steps).to(device, dtype),
            self,
        )


def take(rows: Tensor, block: Block) -> Tensor:
    """(U, S, d) the local rows (U, R + 1, d) that a minibatch reads."""
    return embedding(block.index, rows.flatten(0, 1))


def put(rows: Tensor, block: Block, values: Tensor) -> None:
    """Write the rows (U, S, d) of a minibatch back into the local rows, in place."""
    flat = rows.view(-1, rows.shape[-1])
    flat.index_copy_(0, block.index.flatten(), values.flatten(0, 1))
