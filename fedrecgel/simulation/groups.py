"""Metrics of parts of the users: by popularity of the held-out item, and by their own activity.

A mean over everybody hides that a model finds popular items only, or serves active users only.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.metrics import RankCounts, values_of

__all__ = ["FEWEST", "GROUP_METRICS", "by_activity", "by_popularity", "popularity_groups"]

GROUP_METRICS = ("hr@10", "ndcg@10")
FEWEST = 5
"""Smaller groups show only how many users they have: their metrics would be single users'."""

Models = Mapping[str, Mapping[str, RankCounts]]
"""``{"model": {"sampled": ranks, "full": ranks}, "popularity": {...}}`` of the same users."""


def popularity_groups(train_counts: NDArray[np.int64]) -> dict[str, NDArray[np.bool_]]:
    """Divide items (M,) into ``head``, ``middle``, ``tail`` and ``cold``.

    The head holds the most popular items that have the first third of all train interactions, the
    middle those with the next third, the tail the others; cold items have no train interaction.
    Equally popular items are always in the same group.
    """
    order = np.argsort(-train_counts, kind="stable")
    falling = train_counts[order]
    before = np.concatenate([[0], np.cumsum(falling)])[:-1]
    # Interactions with strictly more popular items, so that equal items get the same number.
    first_of_equals = np.searchsorted(-falling, -falling, side="left")
    above = np.empty(len(train_counts))
    above[order] = before[first_of_equals]
    share = above / max(int(train_counts.sum()), 1)
    known = train_counts > 0
    return {
        "head": known & (share < 1 / 3),
        "middle": known & (share >= 1 / 3) & (share < 2 / 3),
        "tail": known & (share >= 2 / 3),
        "cold": ~known,
    }


def by_popularity(
    dataset: Dataset, models: Models, positives: NDArray[np.integer]
) -> dict[str, Any]:
    """Return metrics by the group of the users' held-out item, ``positives`` (n,)."""
    return {
        name: {"items": int(np.count_nonzero(items)), **_part(models, items[positives])}
        for name, items in popularity_groups(dataset.train_counts).items()
    }


def by_activity(dataset: Dataset, models: Models, users: NDArray[np.int64]) -> dict[str, Any]:
    """Return metrics of the ``least``, ``medium`` and ``most`` active third of ``users`` (n,).

    Equally active users are in the same group; ``below`` and ``from`` are its bounds, in train
    interactions.
    """
    length = np.diff(dataset.train_offsets)[users]
    if not len(length):
        return {}
    # The lowest value that at least a third, two thirds of the users do not exceed.
    low, high = (
        int(np.quantile(length, third, method="inverted_cdf")) + 1 for third in (1 / 3, 2 / 3)
    )
    return {
        "least": {"below": low, **_part(models, length < low)},
        "medium": {"from": low, "below": high, **_part(models, (length >= low) & (length < high))},
        "most": {"from": high, **_part(models, length >= high)},
    }


def _part(models: Models, mask: NDArray[np.bool_]) -> dict[str, Any]:
    evaluated = int(np.count_nonzero(mask))
    if evaluated < FEWEST:
        return {"evaluated": evaluated}
    return {
        "evaluated": evaluated,
        **{
            name: {r: values_of(c.select(mask), GROUP_METRICS) for r, c in rankings.items()}
            for name, rankings in models.items()
        },
    }
