"""Training samples of a round: each user's positives and freshly drawn negatives.

The score of a sample depends on the user and the item alone, so equal pairs are merged: a user's
samples become one weight for each distinct item, split into its positive part and its total. The
loss ``sum_i total_i * softplus(s_i) - positive_i * s_i`` is then exactly the weighted binary
cross-entropy over the original samples, and the distinct items are exactly the item rows that the
user touches.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.hashing import integers, mix
from fedrecgel.common.interactions import Interactions, Ints

CHUNK = 128
"""Samples whose losses are averaged together under ``loss=chunked-sum`` (published code)."""


@dataclass(frozen=True)
class Samples:
    """Weighted samples of ``U`` users over ``R`` (user, item) pairs, sorted by user, then item.

    Attributes
    ----------
    items : (R,) int64
    positive, total : (R,) float64
        Weight of the pair as a positive, and as positive or negative together.
    offsets : (U + 1,) int64
    """

    items: Ints
    positive: NDArray[np.float64]
    total: NDArray[np.float64]
    offsets: Ints

    @property
    def counts(self) -> Ints:
        """(U,) number of distinct items of each user."""
        return np.diff(self.offsets)


def draw_negatives(data: Interactions, num_negatives: int, *stream: int | str) -> Ints:
    """For each positive, distinct items that its user never trained on (nor ``data.barred``).

    The k-th item outside a user's train set is found by rank, so nothing is rejected and a user who
    has nearly everything costs no more than another.

    Returns
    -------
    (T, num_negatives) int64
        Row ``t`` belongs to ``data.items[t]``; -1 where the user has too few unseen items.
    """
    owners = data.owners
    position = np.arange(len(owners)) - data.offsets[owners]
    items, offsets = data.no_negatives
    unseen = (data.num_items - np.diff(offsets))[owners]
    key = mix("negatives", *stream, data.keys[owners], position)
    ranks = np.full((len(owners), num_negatives), -1, dtype=np.int64)
    for k in range(num_negatives):
        enough = unseen > k
        rank = integers(mix(key, k), np.maximum(unseen - k, 1))
        # Draw among those left, then step over the ranks already taken, smallest first.
        for taken in np.sort(ranks[:, :k], axis=1).T:
            rank += (taken >= 0) & (rank >= taken)
        ranks[:, k] = np.where(enough, rank, -1)
    # Item of rank r: r plus the number of seen items before it. `gaps` is that count's staircase.
    stride = data.num_items + 1
    users = np.repeat(np.arange(data.num_users), np.diff(offsets))
    gaps = items - (np.arange(len(items)) - offsets[users]) + users * stride
    before = np.searchsorted(gaps, ranks + (owners * stride)[:, None], side="right")
    found: Ints = ranks + before - offsets[owners][:, None]
    return np.where(ranks < 0, -1, found)


def draw_samples(
    data: Interactions, *, num_negatives: int, loss: str, seed: int, round: int
) -> Samples:
    """Positives and negatives of one round, merged and weighted.

    Parameters
    ----------
    loss
        ``"mean"``: each user's samples weigh ``1 / n``. ``"chunked-sum"``: the samples are
        shuffled, cut into chunks of 128, and each chunk weighs 1 in all.
    """
    negatives = draw_negatives(data, num_negatives, seed, round)
    drawn = np.concatenate([data.items[:, None].astype(np.int64), negatives], axis=1)
    valid = drawn >= 0
    owners = np.broadcast_to(data.owners[:, None], drawn.shape)[valid]
    weights = _weights(data, owners, valid, loss, seed, round)
    is_positive = np.zeros(drawn.shape)
    is_positive[:, 0] = 1.0

    pairs, index = np.unique(owners * data.num_items + drawn[valid], return_inverse=True)
    users, items = np.divmod(pairs, data.num_items)
    total = np.zeros(len(pairs))
    positive = np.zeros(len(pairs))
    np.add.at(total, index, weights)
    np.add.at(positive, index, weights * is_positive[valid])
    offsets = np.searchsorted(users, np.arange(data.num_users + 1))
    return Samples(items, positive, total, offsets)


def _weights(
    data: Interactions, owners: Ints, valid: NDArray[np.bool_], loss: str, seed: int, round: int
) -> NDArray[np.float64]:
    """(n,) weight of each sample, samples in the order of ``owners`` (sorted by user)."""
    counts = np.bincount(owners, minlength=data.num_users)
    size = counts[owners]
    if loss == "mean" or not (counts > CHUNK).any():
        return np.reciprocal(size, dtype=np.float64)
    start = np.concatenate(([0], np.cumsum(counts)))[owners]
    place = np.arange(len(owners)) - start
    order = np.lexsort((mix("chunks", seed, round, data.keys[owners], place), owners))
    rank = np.empty_like(place)
    rank[order] = place
    first = rank // CHUNK * CHUNK
    weights: NDArray[np.float64] = np.reciprocal(np.minimum(CHUNK, size - first), dtype=np.float64)
    return weights
