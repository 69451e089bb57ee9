"""What the server holds during a run, and the best of it so far."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.algorithms.base import Algorithm, ServerState
from fedrecgel.common.config import Config
from fedrecgel.common.interactions import Ints
from fedrecgel.common.metrics import MetricSums
from fedrecgel.common.requests import Experiment
from fedrecgel.common.state import State
from fedrecgel.server.history import History
from fedrecgel.server.roster import Roster, extended


@dataclass
class Best:
    """The chosen round so far: its metric, and what is needed to restore it.

    Attributes
    ----------
    server
        The server's tensors of that round.
    trained_items : (M,) bool
        Item rows that an accepted update had touched by then.
    accepted : (N,) int64
        For each user the last accepted round by then; 0 = none.
    evaluated : (S, 2) float64
        For each member of the roster how many users were evaluated, and the sum of the metric over
        them; zeros for sites that did not answer.
    """

    round: int
    value: float
    server: ServerState
    trained_items: NDArray[np.bool_]
    accepted: Ints
    evaluated: NDArray[np.float64]

    @property
    def shared(self) -> State:
        """The shared tensors of that round."""
        return self.server.shared

    def beaten_by(self, value: float, evaluated: NDArray[np.float64]) -> bool:
        """Whether a later evaluation is better, judged by sites that answered both.

        Sites come and go, and their users are not equally hard to please: a mean over others is no
        progress. Where no site answered both there is nothing to compare, and nothing is better.
        """
        if math.isnan(self.value):
            return True  # it was over nobody
        now, then = evaluated[:, 0] > 0, self.evaluated[:, 0] > 0
        if np.array_equal(now, then):
            return value > self.value
        if not (now & then).any():
            return False
        users, total = evaluated[now & then].sum(0)
        users_then, total_then = self.evaluated[now & then].sum(0)
        return bool(total / users > total_then / users_then)


@dataclass
class Federation:
    """The server's side of a run.

    Attributes
    ----------
    trained_items : (M,) bool
        Item rows that an accepted update has touched.
    best
        The best evaluated round; None before the first evaluation.
    saved
        For each kept checkpoint ``accepted``, and that of its best round if it has one.
    norms
        Norms of the last accepted updates, per user.
    """

    config: Config
    experiment: Experiment
    roster: Roster
    algorithm: Algorithm[Any]
    server: ServerState
    trained_items: NDArray[np.bool_]
    history: History = field(default_factory=History)
    best: Best | None = None
    saved: list[list[Ints]] = field(default_factory=list)
    norms: deque[float] = field(default_factory=lambda: deque(maxlen=512))

    def kept(self, users: Ints) -> Ints:
        """(K, C) rounds whose private state nodes must not overwrite; the first is accepted."""
        rows = [self.roster.accepted, *([self.best.accepted] if self.best else [])]
        rows += [row for checkpoint in self.saved for row in checkpoint]
        return np.stack([row[users] for row in rows])

    def saving(self, keep: int) -> None:
        """Note that the present state was written to a checkpoint; the last ``keep`` count."""
        rows = [self.roster.accepted.copy()] + ([self.best.accepted] if self.best else [])
        self.saved = [*self.saved, rows][-keep:]

    def grow(self) -> None:
        """Make room in what was kept before for the users of sites that joined since."""
        users, sites = self.roster.num_users, len(self.roster.members)
        self.saved = [[extended(row, users) for row in rows] for rows in self.saved]
        if self.best is not None:
            self.best.accepted = extended(self.best.accepted, users)
            more = sites - len(self.best.evaluated)
            self.best.evaluated = np.pad(self.best.evaluated, ((0, more), (0, 0)))

    def remember(self, round: int, value: float, evaluated: NDArray[np.float64]) -> None:
        """Keep this round as the best."""
        self.best = Best(
            round,
            value,
            self.algorithm.snapshot(self.server),
            self.trained_items.copy(),
            self.roster.accepted.copy(),
            evaluated,
        )


@dataclass(frozen=True)
class Outcome:
    """What a run ends with.

    Attributes
    ----------
    rounds
        How many were trained; fewer than asked for after an early stop.
    selected_by
        Validation metric that chose the round, or None where the last round is taken.
    test
        Sums over the test users, by ``sampled`` and ``full``.
    """

    experiment: Experiment
    roster: Roster
    best: Best
    rounds: int
    selected_by: str | None
    history: History
    test: dict[str, MetricSums]
