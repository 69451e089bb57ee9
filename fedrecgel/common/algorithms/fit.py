"""A private state for somebody the run never trained, against the frozen shared model."""

from collections.abc import Callable
from typing import Any

from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.state import State

FIT_ROUNDS = 50
"""Local rounds in which a private state is fitted to the frozen shared model."""


def fit_private(
    algorithm: Algorithm[Any],
    download: Download,
    data: Interactions,
    private: State | None = None,
    after: int = 0,
    between: Callable[[], object] | None = None,
) -> State:
    """Private states (U, ...) of users after `FIT_ROUNDS` local rounds; nothing is sent or kept.

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
    for round in range(after + 1, after + FIT_ROUNDS + 1):
        if between is not None:
            between()
        _, private = algorithm.update_users(download, private, data, round)
    return private
