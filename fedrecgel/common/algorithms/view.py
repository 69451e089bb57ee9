"""Scores of a group of users under a shared model, as evaluation and recommendation need them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecgel.common.scorers.base import Scorer
from fedrecgel.common.state import State


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
