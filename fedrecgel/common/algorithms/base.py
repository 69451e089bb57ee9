"""What a federated recommendation algorithm is: one interface, both halves in one small file.

An algorithm says which tensors it has and what may happen to them, what a client computes, and what
the server does with the result. It knows nothing of Flower, nodes, files or rounds other than its
own.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.common.config import Config
from fedrecgel.common.evaluation import PersonalView
from fedrecgel.common.hashing import Keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.state import DTYPES, State, Tensors, Update, stack_users

ConfigT = TypeVar("ConfigT", bound=Config)


@dataclass
class ServerState:
    """What the server keeps.

    Attributes
    ----------
    shared
        Sent to everybody.
    addressed
        Tensors for particular users, by key; `Algorithm.download` decides who gets what.
    auxiliary
        Never sent: labels, last uploads, counters.
    optimizer
        Steps ``shared``, where the algorithm uses one.
    """

    shared: State
    addressed: dict[str, State] = field(default_factory=dict)
    auxiliary: State = field(default_factory=dict)
    optimizer: torch.optim.Optimizer | None = None

    def copy(self) -> "ServerState":
        """The tensors as they are now; without the optimiser, which only training needs."""
        addressed = {key: _clone(state) for key, state in self.addressed.items()}
        return ServerState(_clone(self.shared), addressed, _clone(self.auxiliary))


def _clone(state: State) -> State:
    return {name: value.clone() for name, value in state.items()}


@dataclass(frozen=True)
class Download:
    """What a node gets for a group of users.

    Attributes
    ----------
    shared
        The same for all of them.
    addressed
        Stacked with a leading user axis; empty for most algorithms.
    """

    shared: State
    addressed: State = field(default_factory=dict)

    def user(self, position: int) -> State:
        """Everything that one of the users gets."""
        return {**self.shared, **{k: value[position] for k, value in self.addressed.items()}}


class Algorithm(ABC, Generic[ConfigT]):
    """Base of all algorithms; a new one implements the abstract methods.

    Parameters
    ----------
    config
        Of the class named by `config_class`.
    num_items
        Size of the catalogue, ``M``.
    """

    name: ClassVar[str]
    config_class: ClassVar[type[Config]]
    reduce: ClassVar[Literal["sum", "per-user"]] = "sum"
    """Whether the server needs the sum of the updates, or each user's own."""
    tensors: Tensors

    def __init__(self, config: ConfigT, num_items: int) -> None:
        self.config = config
        self.num_items = num_items
        self.dtype = DTYPES[config.dtype]

    # --- initial state -----------------------------------------------------------------------

    @abstractmethod
    def init_server(self) -> ServerState:
        """The server's state before round 1; a function of the seed."""

    @abstractmethod
    def init_private(self, keys: Keys) -> State:
        """Private state of users with these keys, stacked (U, ...); a function of seed and key."""

    @cached_property
    def private_template(self) -> State:
        """One user's private state: names, shapes and types."""
        state = self.init_private(np.zeros(1, dtype=np.uint64))
        return {name: value[0] for name, value in state.items()}

    def fill_private(self, keys: Keys, kept: State, found: NDArray[np.bool_]) -> State:
        """States of users of whom some (``found``) have a kept state; the others start anew."""
        fresh = self.init_private(keys[~found])
        state = {}
        for name, value in fresh.items():
            state[name] = value.new_empty((len(keys), *value.shape[1:]))
            state[name][np.flatnonzero(~found)] = value
            state[name][np.flatnonzero(found)] = kept[name]
        return state

    # --- client ------------------------------------------------------------------------------

    @abstractmethod
    def local_update(
        self, download: State, private: State, data: Interactions, round: int
    ) -> tuple[Update, State]:
        """One user's round, the plain reference.

        Parameters
        ----------
        download
            Shared tensors and the user's own addressed ones. Read only.
        private
            The user's slice, without a user axis. Read only.
        data
            Interactions of exactly this user; at least one.

        Returns
        -------
        The update for the server and the new private slice.
        """

    def block_update(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[Update, State] | None:
        """The sum over many users at once, equal to `local_update` up to rounding.

        None where the algorithm (or this configuration of it) has no such computation; the caller
        then takes the users one at a time.
        """
        return None

    def update_users(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[list[Update], State]:
        """Train a group of users: one summed update, or one for each user if `reduce` says so."""
        if self.reduce == "sum" and self.config.engine == "block":
            result = self.block_update(download, private, data, round)
            if result is not None:
                return [result[0]], result[1]
        updates, states = [], []
        for user in range(data.num_users):
            own = {name: value[user] for name, value in private.items()}
            one = data.take(np.array([user]))
            update, state = self.local_update(download.user(user), own, one, round)
            updates.append(update)
            states.append(state)
        if self.reduce == "sum":
            updates = [Update.total(updates)]
        return updates, stack_users(states)

    # --- server ------------------------------------------------------------------------------

    def download(self, server: ServerState, users: Tensor) -> Download:
        """What the users with these numbers get; by default the shared tensors."""
        return Download(server.shared)

    @abstractmethod
    def aggregate(self, server: ServerState, updates: dict[int, Update], round: int) -> None:
        """Step the server's state.

        Parameters
        ----------
        updates
            By user number if `reduce` is ``per-user``; else the sum over all accepted users under
            key -1.
        """

    # --- scoring -----------------------------------------------------------------------------

    @abstractmethod
    def personal_view(self, download: Download, private: State) -> PersonalView:
        """Scores of the stacked users, from what the server sends and their own state alone."""

    def prepared(self, shared: State) -> State:
        """``shared``, and beside it what scoring one user after the other would compute each time.

        For `personal_view` alone, and only with exactly these tensors.
        """
        return shared

    def cast(self, state: State) -> State:
        """The state in the configured number format."""
        return {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in state.items()}
