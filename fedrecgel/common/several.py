"""Ranking metrics of users with several held-out items, exact under ties.

Items with equal scores stand in random order. Every metric is the expectation over it, in closed
form: hits and DCG add up over positives, each with its own uniform rank; the first hit and the
average precision follow from how the positives of one score mix with the others of that score.
The ideal list has all positives first, so NDCG divides by the DCG of ``min(positives, k)`` ranks,
and average precision divides by ``min(positives, k)``: a perfect list has 1 whatever k is.
(trec_eval divides average precision by the number of positives, which differs where k is smaller.)
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.metrics import MetricValue, discounts, mean_and_se, parse_metric

__all__ = ["SeveralCounts", "metric_of_several", "values_of_several"]

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SeveralCounts:
    """Where the positives of ``n`` users stand, one entry for each of ``P`` positives."""

    users: Ints
    """(n,) positions of the users in the view that was ranked; each has at least one positive."""
    owner: Ints
    """(P,) index into ``users``, ascending."""
    greater: Ints
    """(P,) how many ranked items, positives or not, have a strictly higher score."""
    ties: Ints
    """(P,) how many other items, positives or not, have the same score."""
    positives_greater: Ints
    """(P,) how many of ``greater`` are positives of the same user."""
    positives_ties: Ints
    """(P,) how many of ``ties`` are positives of the same user."""

    def __len__(self) -> int:
        return len(self.users)

    @property
    def positives(self) -> Ints:
        """(n,) number of positives of each user."""
        return np.bincount(self.owner, minlength=len(self.users))


def metric_of_several(name: str, counts: SeveralCounts) -> Floats:
    """Return the metric ``name`` (``recall@10``, ``map@5``, ... any k >= 1) per user (n,)."""
    kind, k = parse_metric(name)
    best = np.minimum(counts.positives, k)
    if kind == "ndcg":
        ideal = np.concatenate([[0.0], np.cumsum(discounts(k))])
        gain = _per_user(counts, _mean_gain(counts, discounts(k)))
        return np.asarray(gain / ideal[best], dtype=np.float64)
    if kind == "map":
        return _per_user(counts, _precision_at_hits(counts, k)) / best
    if kind == "hr":
        return _hit(counts, k)
    if kind == "mrr":
        return _first_hit(counts, k)
    hits = _per_user(counts, _mean_gain(counts, np.ones(k)))
    return hits / k if kind == "precision" else hits / counts.positives


def values_of_several(counts: SeveralCounts, names: Iterable[str]) -> dict[str, MetricValue]:
    """Return mean and standard error of each metric over users."""
    return {name: mean_and_se(metric_of_several(name, counts)) for name in names}


def _per_user(counts: SeveralCounts, each: Floats) -> Floats:
    return np.bincount(counts.owner, each, minlength=len(counts)).astype(np.float64)


def _mean_gain(counts: SeveralCounts, gains: Floats) -> Floats:
    """(P,) mean of ``gains`` over the ranks that each positive may have."""
    total = np.concatenate([[0.0], np.cumsum(gains)])
    first = np.minimum(counts.greater, len(gains))
    last = np.minimum(counts.greater + counts.ties + 1, len(gains))
    return np.asarray((total[last] - total[first]) / (counts.ties + 1))


def _all_later(counts: SeveralCounts, places: Ints) -> Floats:
    """(P,) chance that none of a level's positives is among its first ``places``."""
    size, chance = counts.ties + 1, np.ones(len(counts.owner))
    for position in range(int(counts.positives_ties.max(initial=0)) + 1):
        among = position <= counts.positives_ties
        left = np.maximum(size - places - position, 0) / np.maximum(size - position, 1)
        chance = np.where(among, chance * left, chance)
    return chance


def _hit(counts: SeveralCounts, k: int) -> Floats:
    places = np.clip(k - counts.greater, 0, counts.ties + 1)
    best = np.zeros(len(counts))
    # The chance of the highest level with a positive is the largest; at or above k it is 0.
    np.maximum.at(best, counts.owner, 1.0 - _all_later(counts, places))
    return best


def _first_hit(counts: SeveralCounts, k: int) -> Floats:
    """(n,) expected reciprocal rank of the user's first positive."""
    each = np.zeros(len(counts.owner))
    before = _all_later(counts, np.zeros_like(counts.greater))
    for place in range(1, k + 1):
        later = _all_later(counts, np.minimum(place, counts.ties + 1))
        rank = counts.greater + place
        each += np.where(rank <= k, (before - later) / rank, 0.0)
        before = later
    best = np.zeros(len(counts))
    top = counts.positives_greater == 0
    np.maximum.at(best, counts.owner[top], each[top])
    return best


def _precision_at_hits(counts: SeveralCounts, k: int) -> Floats:
    """(P,) expected precision at the positive's own rank, 0 beyond k."""
    size = counts.ties + 1
    each = np.zeros(len(counts.owner))
    for rank in range(1, k + 1):
        place = rank - counts.greater
        here = (place >= 1) & (place <= size)
        # Of the other items of the level, place - 1 stand before; positives among them in share.
        mixed = (place - 1) * counts.positives_ties / np.maximum(counts.ties, 1)
        each += np.where(here, (counts.positives_greater + 1 + mixed) / rank, 0.0)
    return each / size
