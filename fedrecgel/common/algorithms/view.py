"""Scores of a group of users under a shared model, as evaluation and recommendation need them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.algorithms.base import Algorithm
from fedrecgel.common.evaluation import BUDGET, PersonalView
from fedrecgel.common.interactions import Ints
from fedrecgel.common.scorers.base import Scorer
from fedrecgel.common.state import State, size_of

GROUP_BYTES = 1 << 28
"""Private state in memory at once: where every user has a table of all items it is gigabytes."""


def users_at_once(algorithm: Algorithm[Any]) -> int:
    """How many users' private state fits in `GROUP_BYTES`, at least one."""
    each = sum(map(size_of, algorithm.private_template.values()))
    return max(1, GROUP_BYTES // max(1, each))


@dataclass(frozen=True)
class ScorerView:
    """A `PersonalView` of users whose vectors are ``users`` (U, P)."""

    scorer: Scorer
    shared: State
    users: Tensor

    @property
    def num_users(self) -> int:
        """Users in the view."""
        return len(self.users)

    @property
    def num_items(self) -> int:
        """Size of the catalogue."""
        return len(self.shared["items"])

    @torch.no_grad()
    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores (B, C) of item indices (B, C) for the users at these positions (B,)."""
        return self.scorer.candidates(self.shared["items"], self.shared, self.users[users], items)

    @torch.no_grad()
    def catalogue(self, users: Tensor) -> Tensor:
        """Scores (B, M) of the whole catalogue."""
        return self.scorer.catalogue(self.shared["items"], self.shared, self.users[users])


@dataclass(frozen=True)
class GroupedView:
    """A `PersonalView` that makes the views of ``size`` of its users at a time with ``make``."""

    users: Ints
    num_items: int
    size: int
    make: Callable[[Ints], PersonalView]

    @property
    def num_users(self) -> int:
        """Users in the view."""
        return len(self.users)

    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        """See `PersonalView.candidates`."""
        parts = zip(torch.split(users, self.size), torch.split(items, self.size), strict=True)
        return torch.cat([self._view(u).candidates(torch.arange(len(u)), i) for u, i in parts])

    def catalogue(self, users: Tensor) -> Tensor:
        """See `PersonalView.catalogue`."""
        parts = torch.split(users, self.size)
        return torch.cat([self._view(part).catalogue(torch.arange(len(part))) for part in parts])

    def _view(self, positions: Tensor) -> PersonalView:
        return self.make(np.asarray(self.users)[positions.numpy()])


@dataclass(frozen=True)
class ScoresView:
    """A `PersonalView` of ``scores`` (U, M) that are there already."""

    scores: Tensor

    @property
    def num_users(self) -> int:
        """Users in the view."""
        return len(self.scores)

    @property
    def num_items(self) -> int:
        """Size of the catalogue."""
        return self.scores.shape[1]

    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        """See `PersonalView.candidates`."""
        return self.scores[users[:, None], items]

    def catalogue(self, users: Tensor) -> Tensor:
        """See `PersonalView.catalogue`."""
        return self.scores[users]


@dataclass(frozen=True)
class LinearView:
    """A `PersonalView` of scores ``items @ weight + bias``, some of them replaced.

    Attributes
    ----------
    items : (M, d)
    weights : (U, d)
    biases : (U, 1) or None
    own_items : (U, C) or None
        Items whose scores are others for a user; -1 in the padding.
    own_scores : (U, C) or None
        These scores.
    """

    items: Tensor
    weights: Tensor
    biases: Tensor | None = None
    own_items: Tensor | None = None
    own_scores: Tensor | None = None

    @property
    def num_users(self) -> int:
        """Users in the view."""
        return len(self.weights)

    @property
    def num_items(self) -> int:
        """Size of the catalogue."""
        return len(self.items)

    @torch.no_grad()
    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores (B, C) of item indices (B, C) for the users at these positions (B,)."""
        size = max(1, BUDGET // (self.items.element_size() * self.num_items))
        parts = zip(torch.split(users, size), torch.split(items, size), strict=True)
        found = [self.catalogue(who).gather(1, what.to(self.items.device)) for who, what in parts]
        return torch.cat(found)

    @torch.no_grad()
    def catalogue(self, users: Tensor) -> Tensor:
        """Scores (B, M) of the whole catalogue."""
        users = users.to(self.items.device)
        scores = self.weights[users] @ self.items.T
        if self.biases is not None:
            scores += self.biases[users]
        if self.own_items is not None and self.own_scores is not None:
            which, place = (self.own_items[users] >= 0).nonzero(as_tuple=True)
            row = users[which]
            scores[which, self.own_items[row, place].long()] = self.own_scores[row, place]
        return scores
