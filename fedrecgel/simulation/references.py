"""What a model must beat: the most popular items, and chance.

Popularity scores an item by its number of train interactions, the same for everybody; equally
popular items are ties and ranked by expectation, so their order in the file decides nothing. Chance
is the expected metric of scores without any information, computed from the number of rivals.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.evaluation import (
    HeldOut,
    held_out,
    rank_among_candidates,
    rank_in_catalogue,
)
from fedrecgel.common.metrics import NAMES, MetricValue, RankCounts, values_of

__all__ = [
    "PopularityView",
    "Values",
    "chance_counts",
    "popularity_counts",
    "popularity_report",
    "values",
]

Values = dict[str, dict[str, MetricValue]]
"""``{"sampled": {"hr@10": {"value", "se"}, ...}, "full": {...}}``."""


class PopularityView:
    """The same scores for everybody, as a `PersonalView`: by default train interactions per item.

    Parameters
    ----------
    scores
        (M,) float64 score of each item.
    num_users
        Users that the view pretends to hold.
    """

    def __init__(self, scores: NDArray[np.float64], num_users: int) -> None:
        self.num_users = num_users
        self.num_items = len(scores)
        self._scores = torch.from_numpy(scores)

    @classmethod
    def of(cls, dataset: Dataset, num_users: int | None = None) -> "PopularityView":
        """Count the train interactions of ``dataset``."""
        users = dataset.num_users if num_users is None else num_users
        return cls(dataset.train_counts.astype(np.float64), users)

    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        return self._scores[items]

    def catalogue(self, users: Tensor) -> Tensor:
        return self._scores.expand(len(users), self.num_items)


def popularity_counts(dataset: Dataset, held: HeldOut) -> dict[str, RankCounts]:
    """Find where popularity ranks the positives of ``held``: ``sampled`` and ``full``."""
    view = PopularityView.of(dataset, len(held.positives))
    return {
        "sampled": rank_among_candidates(view, held.positives, held.candidates),
        "full": rank_in_catalogue(view, held.positives, held.excluded),
    }


def chance_counts(held: HeldOut, num_items: int) -> dict[str, RankCounts]:
    """Find where scores that are all alike rank the positives of ``held``: every rival is a tie."""
    rows = np.flatnonzero(np.asarray(held.positives) >= 0)
    which, items = held.excluded.entries(rows)
    other = items != held.positives[rows][which]
    excluded = np.unique(which[other] * num_items + items[other]) // num_items
    full = num_items - 1 - np.bincount(excluded, minlength=len(rows))
    sampled = np.count_nonzero(held.candidates[rows] >= 0, axis=1)
    none = np.zeros(len(rows), dtype=np.int64)
    return {"sampled": RankCounts(none, sampled, rows), "full": RankCounts(none, full, rows)}


def values(counts: Mapping[str, RankCounts], names: Iterable[str] = NAMES) -> Values:
    """Return means and standard errors of each ranking in ``counts``."""
    chosen = tuple(names)
    return {ranking: values_of(c, chosen) for ranking, c in counts.items()}


def popularity_report(dataset: Dataset, split: str) -> Values:
    """Return popularity's metrics on ``validation`` or ``test``, in the shape of a model's."""
    return values(popularity_counts(dataset, held_out(dataset, split)))
