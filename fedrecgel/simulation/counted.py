"""Over whom and what a report's numbers are means: users, items and candidates, counted."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.evaluation import HeldOut
from fedrecgel.common.metrics import RankCounts
from fedrecgel.simulation.references import values

__all__ = ["count_candidates", "count_items", "count_users"]


def count_users(
    dataset: Dataset,
    split: str,
    model: dict[str, RankCounts],
    trained_users: NDArray[np.bool_],
    trained: NDArray[np.bool_],
) -> dict[str, Any]:
    """Count the users behind the numbers, and measure those alone who were trained."""
    eligible = dataset.test_items if split == "test" else dataset.validation_items
    return {
        "all": dataset.num_users,
        "eligible": int(np.count_nonzero(np.asarray(eligible) >= 0)),
        "evaluated": len(model["full"]),
        "never_trained": int(np.count_nonzero(~trained_users)),
        "trained_only": _part(model, trained),
    }


def count_items(
    model: dict[str, RankCounts], trained_items: NDArray[np.bool_], trained: NDArray[np.bool_]
) -> dict[str, Any]:
    """Count items that no update touched, and measure without users whose positive is one."""
    unseen = int(np.count_nonzero(~trained))
    return {
        "all": len(trained_items),
        "never_trained": int(np.count_nonzero(~trained_items)),
        "positives_never_trained": unseen,
        "positives_never_trained_share": unseen / len(trained) if len(trained) else None,
        "trained_positives_only": _part(model, trained),
    }


def _part(model: dict[str, RankCounts], mask: NDArray[np.bool_]) -> dict[str, Any]:
    evaluated = int(np.count_nonzero(mask))
    return {
        "evaluated": evaluated,
        **values({r: c.select(mask) for r, c in model.items()}),
    }


def count_candidates(held: HeldOut) -> dict[str, int | None]:
    """Return the fewest and the most sampled rivals of a user."""
    evaluated = np.asarray(held.positives) >= 0
    lengths = np.count_nonzero(np.asarray(held.candidates)[evaluated] >= 0, axis=1)
    if not len(lengths):
        return {"fewest": None, "most": None}
    return {"fewest": int(lengths.min()), "most": int(lengths.max())}
