"""Central references beside each other, and beside a run on the same users."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.metrics import NAMES, RankCounts
from fedrecgel.common.resampling import paired_difference
from fedrecgel.simulation.central.methods import METHODS
from fedrecgel.simulation.central.tuned import TUNED_BY, Reference, references
from fedrecgel.simulation.lists import describe_lists
from fedrecgel.simulation.references import values

__all__ = ["reference_report"]

NOTE = "references see all interactions in one place; they are neither federated nor private"


def reference_report(
    dataset: Dataset,
    names: Sequence[str] | None = None,
    model: Mapping[str, RankCounts] | None = None,
    *,
    fresh: bool = False,
) -> dict[str, Any]:
    """Return what `references` finds in the form of a report.

    Parameters
    ----------
    names
        Methods; None or empty for all that can be had.
    model
        Ranks of a run's model, ``sampled`` and ``full``; each reference then has ``difference``,
        the model minus the reference on the users that the model was measured on.
    """
    # Beside a run a method that cannot be had is no reason to lose the run.
    found, left_out = references(
        dataset, names or None, fresh=fresh, strict=model is None, tell=_tell
    )
    return {
        "note": NOTE,
        "tuned_by": f"validation {TUNED_BY}",
        "methods": {one.name: _entry(dataset, one, model) for one in found},
        "left_out": left_out,
    }


def _entry(
    dataset: Dataset, one: Reference, model: Mapping[str, RankCounts] | None
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "about": METHODS[one.name].about,
        "test": values(one.ranks),
        "evaluated": len(one.ranks["full"]),
        "params": dict(one.params),
        "trials": one.trials,
        "seconds": one.seconds,
        "lists": describe_lists(one.lists, dataset),
    }
    if model is not None:
        entry["difference"] = {
            ranking: paired_difference(counts, _of_users(one.ranks[ranking], counts), NAMES)
            for ranking, counts in model.items()
        }
    return entry


def _of_users(ranks: RankCounts, model: RankCounts) -> RankCounts:
    """Ranks of the users that the model was measured on, in the model's order."""
    place = {int(user): row for row, user in enumerate(ranks.users)}
    rows = [place[int(user)] for user in model.users if int(user) in place]
    return RankCounts(ranks.greater[rows], ranks.ties[rows], ranks.users[rows])


def _tell(line: str) -> None:
    if sys.stderr.isatty():
        print(line, file=sys.stderr)
