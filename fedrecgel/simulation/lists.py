"""What the recommended lists look like: coverage, novelty, concentration, overlap.

A hit ratio does not say whether everybody gets the same ten items. All numbers here are of lists
(n, k) of item indices, -1 where a list is shorter, and of all ``M`` items of the catalogue.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.dataset import Dataset

__all__ = ["TOP", "describe_lists", "gini", "mean_overlap", "novelty", "overlap_between_users"]

Lists = NDArray[np.int64]

TOP = 10
"""Length of the lists that are looked at."""


def describe_lists(lists: Lists, dataset: Dataset) -> dict[str, Any]:
    """Return coverage, novelty, Gini and overlap of ``lists``; None where nobody has one."""
    listed = lists[lists >= 0]
    exposure = np.bincount(listed, minlength=dataset.num_items)
    return {
        "coverage": float(np.mean(exposure > 0)) if len(listed) else None,
        "items_listed": int(np.count_nonzero(exposure)),
        "gini": gini(exposure),
        "novelty": novelty(lists, dataset.train_counts, dataset.num_users),
        "between_users": overlap_between_users(lists, dataset.num_items),
    }


def gini(exposure: NDArray[np.int64]) -> float | None:
    """Return how unevenly list places fall on items (M,): 0 all alike, towards 1 all on one."""
    total = int(exposure.sum())
    if not total:
        return None
    rising = np.sort(exposure).astype(np.float64)
    items = len(rising)
    weights = 2 * np.arange(1, items + 1) - items - 1
    return float((weights * rising).sum() / (items * total))


def novelty(lists: Lists, train_counts: NDArray[np.int64], num_users: int) -> float | None:
    """Return the mean of log2(1 / share of users who know the item) over listed items, in bits.

    An item that nobody has interacted with counts as known to one user, so that it is finite.
    """
    listed = lists[lists >= 0]
    if not len(listed):
        return None
    known = np.maximum(train_counts, 1) / num_users
    return float(-np.log2(np.minimum(known, 1.0))[listed].mean())


def overlap_between_users(lists: Lists, num_items: int) -> float | None:
    """Return the mean number of items that two of the lists (n, k) share, over all pairs.

    -1 is padding; None below two lists. An item in c lists is shared by c (c - 1) / 2 pairs, so no
    pair is ever looked at.
    """
    users = len(lists)
    if users < 2:
        return None
    counts = np.bincount(lists[lists >= 0], minlength=num_items).astype(np.float64)
    return float((counts * (counts - 1)).sum() / (users * (users - 1)))


def mean_overlap(a: Lists, b: Lists) -> float | None:
    """Return the mean number of items that ``a[i]`` and ``b[i]`` share; -1 is padding."""
    if not len(a):
        return None
    shared = (a[:, :, None] == b[:, None, :]) & (a[:, :, None] >= 0)
    return float(np.count_nonzero(shared) / len(a))
