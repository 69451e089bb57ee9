"""A private state for somebody the run never trained, against the frozen shared model."""

from collections.abc import Callable
from typing import Any

from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.state import State


def fit_private(
    algorithm: Algorithm[Any],
    download: Download,
    data: Interactions,
    private: State | None = None,
    after: int = 0,
    between: Callable[[], object] | None = None,
) -> State:
    """Private states (U, ...) of users after `Algorithm.fit_rounds`; nothing is sent or kept.

    Parameters
    ----------
    data
        What the users interacted with; at least one item each.
    private
        States to begin with; by default the initial ones.
    after
        Round whose successor is the first: the negatives of a round are drawn by its number.
    between
        Called before every round, for whoever must let others pass.
    """
    if private is None:
        private = algorithm.init_private(data.keys)
    for round in range(after + 1, after + algorithm.fit_rounds + 1):
        if between is not None:
            between()
        _, private = algorithm.update_users(download, private, data, round)
    return private
