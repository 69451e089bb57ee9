"""What the server asks of nodes and what they answer, as plain dataclasses without Flower."""

import json
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache

import numpy as np
import torch

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.config import Scalar
from fedrecgel.common.interactions import Ints
from fedrecgel.common.state import State, Update

NEVER = 0
"""Round of a user who was never trained; rounds count from 1."""


@dataclass(frozen=True)
class Experiment:
    """What every message says about the run it belongs to.

    Attributes
    ----------
    id
        Opaque id of the run; private state is kept under it.
    algorithm
        Name in the registry.
    settings
        `Config.to_flat`.
    num_items, catalogue
        Size and hash of the catalogue; an empty hash fits any.
    """

    id: str
    algorithm: str
    settings: dict[str, Scalar]
    num_items: int
    catalogue: str = ""

    @cached_property
    def key(self) -> str:
        """A string equal for equal experiments."""
        return json.dumps(asdict(self), sort_keys=True)

    @staticmethod
    @lru_cache(maxsize=64)
    def from_key(key: str) -> "Experiment":
        """The experiment of a key; every message of a run has the same."""
        return Experiment(**json.loads(key))


@dataclass(frozen=True)
class TrainRequest:
    """Train these users of the node.

    Attributes
    ----------
    slots : (C,) int64
        Which of the node's users.
    kept : (K, C) int64
        Rounds whose private state is still needed, for each user; 0 = the initial state. The first
        row is the last round whose update the server accepted, the state to start from: what a
        user computed in a round that was not accepted is thereby undone. The other rows belong to
        the best round and to checkpoints.
    which : (C,) int64 or None
        `Download.which` of the users.
    """

    experiment: Experiment
    round: int
    slots: Ints
    kept: Ints
    shared: State
    addressed: State = field(default_factory=dict)
    which: Ints | None = None


@dataclass(frozen=True)
class EvaluateRequest:
    """Evaluate all users of the node.

    Attributes
    ----------
    split
        ``validation`` or ``test``.
    full
        Rank in the whole catalogue as well as among the candidates.
    accepted : (U,) int64
        For every slot the round whose private state to evaluate; 0 = the initial state.
    which : (U,) int64 or None
        `Download.which` of the slots.
    """

    experiment: Experiment
    round: int
    split: str
    full: bool
    accepted: Ints
    shared: State
    addressed: State = field(default_factory=dict)
    which: Ints | None = None


@dataclass(frozen=True)
class TrainReply:
    """A node's updates in a round: one sum, or one for each user in the order of the request."""

    updates: list[Update]
    round: int


def download_of(request: TrainRequest | EvaluateRequest) -> Download:
    """What the server sent, as algorithms take it."""
    which = None if request.which is None else torch.from_numpy(np.array(request.which))
    return Download(request.shared, request.addressed, which)
