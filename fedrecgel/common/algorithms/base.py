"""What a federated recommendation algorithm is: one interface, both halves in one small file.

An algorithm says which tensors it has and what may happen to them, what a client computes, and what
the server does with the result. It knows nothing of Flower, nodes, files or rounds other than its
own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.common.config import Config, Scalar
from fedrecgel.common.errors import ConfigError, FederationError
from fedrecgel.common.evaluation import PersonalView
from fedrecgel.common.hashing import Keys, uniform_cohort
from fedrecgel.common.interactions import Interactions, Ints
from fedrecgel.common.state import DTYPES, State, Tensors, Update, stack_users

ConfigT = TypeVar("ConfigT", bound=Config)
FIT_ROUNDS = 50
"""Local rounds after which a private state stepped by gradients has mostly settled."""


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

    def to_flat(self) -> State:
        """All tensors under path-like names: ``shared/items``, ``addressed/3/group``, ..."""
        parts = {"shared": self.shared, "auxiliary": self.auxiliary}
        parts |= {f"addressed/{key}": state for key, state in self.addressed.items()}
        return {f"{part}/{n}": value for part, state in parts.items() for n, value in state.items()}

    @classmethod
    def from_flat(cls, tensors: State) -> "ServerState":
        """The reverse of `to_flat`; names of other kinds are passed over."""
        state = cls({})
        for path, value in tensors.items():
            part, _, name = path.partition("/")
            if part == "addressed":
                key, _, name = name.partition("/")
                state.addressed.setdefault(key, {})[name] = value
            elif part in ("shared", "auxiliary"):
                (state.shared if part == "shared" else state.auxiliary)[name] = value
        return state


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
        Stacked with a leading axis; empty for most algorithms. What several users get alike (the
        model of their cluster) is there once.
    which : (U,) int64
        Each user's row in ``addressed``, -1 for none; None stands for row ``u`` for user ``u``.
    """

    shared: State
    addressed: State = field(default_factory=dict)
    which: Tensor | None = None

    def rows(self, users: int) -> Tensor:
        """``which`` for so many users, written out."""
        if self.which is not None:
            return self.which
        return torch.arange(users) if self.addressed else torch.full((users,), -1)

    def user(self, position: int) -> State:
        """Everything that one of the users gets; nothing addressed where there is none for them."""
        row = position if self.which is None else int(self.which[position])
        own = {name: value[row] for name, value in self.addressed.items()} if row >= 0 else {}
        return {**self.shared, **own}

    def take(self, users: Tensor) -> "Download":
        """The same for some of the users, with no more addressed rows than they need."""
        if not self.addressed:
            return self
        which = (self.rows(int(users.max()) + 1) if len(users) else torch.arange(0))[users]
        needed, place = torch.unique(which[which >= 0], return_inverse=True)
        own = torch.full_like(which, -1)
        own[which >= 0] = place
        return Download(self.shared, {n: v[needed] for n, v in self.addressed.items()}, own)


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
    sends: ClassVar[Literal["gradient", "change"]] = "change"
    """What an update holds: a gradient, or the change of the weights."""
    citation: ClassVar[str] = ""
    search: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {}
    """The few settings that matter most and values to try: what `fedrecgel.compare` tunes."""
    scored_with: ClassVar[str] = "shared and own private tensors"
    """Which model users are scored with, in a few words, unless ``score-with`` says otherwise."""
    tensors: Tensors
    """Declared in ``__init__``: what may happen to which tensor."""

    @classmethod
    def scoring(cls, config: Config) -> str:
        """Which model users are scored with under this config, in a few words."""
        shared = config.to_flat().get("score-with") == "global"
        return "shared table, own score function" if shared else cls.scored_with

    def __init__(self, config: ConfigT, num_items: int) -> None:
        refuse_individual(self, config)
        self.config = config
        self.num_items = num_items
        self.dtype = DTYPES[config.dtype]

    @classmethod
    def variant(cls, config: Config) -> "type[Algorithm[Any]]":
        """The class that computes with these settings; by default this one."""
        return cls

    @classmethod
    def search_for(cls, config: Config) -> Mapping[str, tuple[Scalar, ...]]:
        """What to tune around these settings; by default `search`."""
        return cls.search

    # --- initial state -----------------------------------------------------------------------

    @abstractmethod
    def init_server(self) -> ServerState:
        """The server's state before round 1; a function of the seed."""

    @abstractmethod
    def init_private(self, keys: Keys) -> State:
        """Private state of users with these keys, stacked (U, ...); a function of seed and key."""

    @property
    def row_wise(self) -> bool:
        """Whether an item row is averaged over those who touched it, not over all users."""
        return False

    @cached_property
    def private_template(self) -> State:
        """One user's private state: names, shapes and types."""
        state = self.init_private(np.zeros(1, dtype=np.uint64))
        return {name: value[0] for name, value in state.items()}

    def update_template(self, server: ServerState) -> State:
        """Tensors of the shapes and types that an update has, item rows for the whole catalogue."""
        tensors = (
            {**self.private_template, **server.shared} if self.tensors.uploaded else server.shared
        )
        return {name: tensors[name] for name in self.tensors.sent}

    @property
    def addressed_template(self) -> State:
        """One user's addressed tensors: names, shapes and types."""
        return {}

    def server_bytes(self, num_users: int) -> int:
        """What the server's state grows to beside the shared tensors, once all took part."""
        return 0

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

    def block_updates(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[list[Update], State] | None:
        """`block_update` for algorithms that need each user's own: one update for each user."""
        return None

    def update_users(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[list[Update], State]:
        """Train a group of users: one summed update, or one for each user if `reduce` says so."""
        if self.config.engine == "block":
            if self.reduce == "per-user":
                results = self.block_updates(download, private, data, round)
                if results is not None:
                    return results
            else:
                result = self.block_update(download, private, data, round)
                if result is not None:
                    return [result[0]], result[1]
        updates, states = [], []
        given = (*download.shared.values(), *download.addressed.values())
        versions = [value._version for value in given]
        for user in range(data.num_users):
            own = {name: value[user] for name, value in private.items()}
            one = data.take(np.array([user]))
            made: Any = self.local_update(download.user(user), own, one, round)
            if not isinstance(made, tuple) or [type(part) for part in made] != [Update, dict]:
                raise FederationError(
                    f"local_update of {self.name} must return an Update and the new private state, "
                    f"not {type(made).__name__}"
                )
            update, state = made
            if state.keys() != private.keys():
                raise FederationError(
                    f"local_update of {self.name} returns private {sorted(state)}, init_private "
                    f"{sorted(private)}; give both the same"
                )
            if versions != [value._version for value in given]:
                raise FederationError(
                    f"local_update of {self.name} changes its download in place, which other users "
                    "train with as well; work on a copy"
                )
            updates.append(update)
            states.append(state)
        if self.reduce == "sum":
            updates = [Update.total(updates)]
        return updates, stack_users(states)

    # --- server ------------------------------------------------------------------------------

    def cohort(
        self, server: ServerState, users: Ints, size: int, round: int, attempt: int = 0
    ) -> Ints:
        """Which ``size`` of the users train in a round: a function of the seed and the round.

        Parameters
        ----------
        users
            Numbers of those who can take part, ascending.
        attempt
            Each attempt at a round chooses others.

        Returns
        -------
        Their numbers, ascending; by default every set of users is equally likely.
        """
        return uniform_cohort(users, size, self.config.seed, round, attempt)

    def download(self, server: ServerState, users: Tensor) -> Download:
        """What the users with these numbers train with; by default the shared tensors."""
        return Download(server.shared)

    def evaluation_download(self, server: ServerState, users: Tensor) -> Download:
        """What they are evaluated with, by default the same; a -1 is a user who cannot train."""
        return self.download(server, users)

    def complete(self, shared: State) -> State:
        """``shared`` with what follows from it computed anew, where others stepped it."""
        return shared

    def as_weights(self, update: Update, shared: State) -> Update:
        """The update by the tensors that a strategy of Flower's own steps; by default itself."""
        return update

    def scored(self, server: ServerState) -> State:
        """Shared tensors that users are scored with; by default those that they train with."""
        return server.shared

    def snapshot(self, server: ServerState) -> ServerState:
        """A copy of all that `evaluation_download` needs; kept for the best round."""
        return server.copy()

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

    @property
    def fit_rounds(self) -> int:
        """Local rounds that fit a private state to frozen shared tensors (`fit_private`)."""
        return FIT_ROUNDS

    def prepared(self, shared: State) -> State:
        """``shared``, and beside it what scoring one user after the other would compute each time.

        For `personal_view` alone, and only with exactly these tensors.
        """
        return shared

    def cast(self, state: State) -> State:
        """The state in the configured number format."""
        return {k: v.to(self.dtype) if v.is_floating_point() else v for k, v in state.items()}


def refuse_individual(algorithm: Algorithm[Any] | type[Algorithm[Any]], config: Config) -> None:
    """Refuse what needs each user's own update where the server may see sums only.

    Raises
    ------
    ConfigError
        With the reason.
    """
    if config.server_sees == "sum" and algorithm.reduce == "per-user":
        raise ConfigError(
            f"{config.algorithm} compares the users' own updates on the server, and setting "
            "'server-sees' allows it sums only; choose an algorithm that adds updates, or set "
            "server-sees=individual"
        )


def refuse_averaging(algorithm: Algorithm[Any]) -> None:
    """Refuse what a strategy of Flower's own, which averages weights, cannot run.

    Raises
    ------
    ConfigError
        With the reason.
    """
    if algorithm.reduce == "per-user":
        raise ConfigError(
            f"{algorithm.name} needs each user's own update and sends tables to single users; "
            "Flower's strategies average weights: use FedRecStrategy"
        )
    if algorithm.row_wise:
        raise ConfigError(
            f"{algorithm.name} with row-average takes the mean of a row over the users who touched "
            "it; Flower's strategies average whole tables: set row-average=false, or use "
            "FedRecStrategy"
        )
