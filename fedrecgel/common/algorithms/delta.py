"""Algorithms that send the change of an item table: local training, then the mean over the users.

A user's device downloads the table, steps its own copy of the rows it touches over minibatches of
its samples (`fedrecgel.common.minibatches`), and sends copy minus download. The server adds the
mean over the round's users to the table, which is the published average of whole tables: rows that
a user did not touch count with a change of 0. With ``row-average`` a row's changes are averaged
over the users who touched it, the rule of FedNCF (Perifanis, Efraimidis, arXiv 2106.04405).

Local training is the algorithm's own (`ChangeAlgorithm`), SGD for those that have no more than a
table to share (`DeltaAlgorithm`). Their step of the table is scale-free: ``item-lr`` is how far one
sample of a full minibatch moves its row, in units of (sigma(s) - y) times the user's vector, and
the rate on the minibatch's mean loss is ``item-lr * batch-size``. The published code of PFedRec and
its kin has a rate ``eta`` on the mean loss that it multiplies by 80 and by the number ``M`` of
items: ``item-lr = eta * 80 * M / 256`` is the same, 52.6 for eta = 0.1 on ML-100K. The same number
does on a larger catalogue.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.algorithms.base import Algorithm, Download, ServerState
from fedrecgel.common.config import Config, setting
from fedrecgel.common.errors import FederationError
from fedrecgel.common.initial import normal_table
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.minibatches import Group, Minibatches
from fedrecgel.common.state import State, Update, move, resolve_device, take_users


@dataclass(frozen=True, kw_only=True)
class MinibatchConfig(Config):
    """Settings of algorithms whose clients pass their samples in minibatches."""

    local_epochs: int = setting(1, "passes over a user's samples in a round", low=1)
    batch_size: int = setting(256, "samples in a minibatch", low=1)

    def minibatches(self, data: Interactions, round: int, *, whole: bool = False) -> Minibatches:
        """The users' samples of a round; ``whole`` as in `Minibatches`."""
        return Minibatches(
            data,
            num_negatives=self.num_negatives,
            size=self.batch_size,
            epochs=self.local_epochs,
            seed=self.seed,
            round=round,
            whole=whole,
        )


@dataclass(frozen=True, kw_only=True)
class TableConfig(Config):
    """Settings of algorithms whose users all begin with one item table."""

    embedding_dim: int = setting(32, "size of the embeddings", low=1)
    init_std: float = setting(0.1, "standard deviation of initial embeddings", low=0)

    def first_table(self, num_items: int, name: str = "items") -> Tensor:
        """(M, d) the table before round 1, by its name; whoever knows the settings can draw it."""
        return normal_table(num_items, self.embedding_dim, self.init_std, self.seed, name)


@dataclass(frozen=True, kw_only=True)
class LocalConfig(TableConfig, MinibatchConfig):
    """Settings of algorithms whose clients step their own copy of an item table."""

    local_lr: float = setting(0.1, "learning rate of the private parameters", low=0)
    item_lr: float = setting(
        50.0,
        "step of an item row by one sample of a full minibatch; the rate on the mean loss is "
        "item-lr * batch-size (published eta on M items: item-lr = eta * 80 * M / 256)",
        low=0,
    )

    @property
    def item_rate(self) -> float:
        """Learning rate of item rows on the mean loss of a minibatch."""
        return self.item_lr * self.batch_size


@dataclass(frozen=True, kw_only=True)
class ChangeConfig(MinibatchConfig):
    """Settings of algorithms that send the change of shared tensors to have it averaged."""

    row_average: bool = setting(
        False, "average a row over the users who touched it, not over all of the round"
    )


@dataclass(frozen=True, kw_only=True)
class DeltaConfig(LocalConfig, ChangeConfig):
    """Settings of algorithms that step an item table by SGD and send its change."""


@dataclass(frozen=True)
class Tuned:
    """What `ChangeAlgorithm.tune` found for a group of users.

    Attributes
    ----------
    own
        New private state, stacked.
    losses : (U,)
        Mean loss over the user's minibatches, each before its step.
    dense
        Sums over the users of shared tensors other than the table.
    """

    own: State
    losses: Tensor
    dense: State = field(default_factory=dict)


ChangeConfigT = TypeVar("ChangeConfigT", bound=ChangeConfig)
DeltaConfigT = TypeVar("DeltaConfigT", bound=DeltaConfig)


class ChangeAlgorithm(Algorithm[ChangeConfigT]):
    """Local training of `tune`; the change of the shared table is averaged."""

    table: str = "items"
    """Name of the shared table."""
    rows_beside: int = 0
    """What each user of a group holds beside the local rows, in rows; it bounds the groups."""

    @property
    def row_wise(self) -> bool:
        """See `Algorithm.row_wise`."""
        return self.config.row_average

    @property
    def counted(self) -> frozenset[str]:
        """Names of shared tensors beside the table: who touched a row, where that is averaged."""
        return frozenset({"touched"} if self.row_wise else ())

    @property
    def no_counts(self) -> State:
        """The tensors of `counted` before round 1."""
        return {name: torch.zeros(self.num_items, 1) for name in self.counted}

    @abstractmethod
    def tune(self, group: Group, rows: Tensor, own: State, data: Interactions, round: int) -> Tuned:
        """Step the private state and the local rows of a group of users over their minibatches.

        Parameters
        ----------
        rows : (U, R + 1, d)
            Local copies of the rows ``group.items``; to be changed in place.
        own
            What the users begin with (`begin`), stacked. Read only.
        data
            Interactions of all users of the round; the group's are at ``group.users``.
        """

    @property
    @abstractmethod
    def rates(self) -> str:
        """The learning rates in words, for whoever must lower them."""

    def begin(self, shared: State, private: State) -> State:
        """What users hold when they begin, stacked; by default their private state.

        An algorithm whose users step other shared tensors than the table adds their copies.
        """
        return private

    def aggregate(self, server: ServerState, updates: dict[int, Update], round: int) -> None:
        """Add the mean change; ``touched`` counts how often each row was."""
        update = updates[-1]
        index, rows = update.rows[self.table]
        users: Tensor | int = update.users
        if self.config.row_average:
            counts = update.rows["touched"][1]
            server.shared["touched"][index] += counts
            users = counts.clamp(min=1)  # upload=dense has rows that nobody touched
        server.shared[self.table][index] += rows / users

    def local_update(
        self, download: State, private: State, data: Interactions, round: int
    ) -> tuple[Update, State]:
        """See `Algorithm.local_update`: a group of one."""
        stacked = {name: value.unsqueeze(0) for name, value in private.items()}
        update, state = self.block_update(Download(download), stacked, data, round)
        return update, {name: value[0] for name, value in state.items()}

    @torch.no_grad()
    def block_update(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[Update, State]:
        """See `Algorithm.block_update`."""
        device = resolve_device(self.config.device)
        batches = self.config.minibatches(data, round)
        touched, place_of = np.unique(batches.items, return_inverse=True)
        shared = move(download.shared, device)
        table = shared[self.table]
        sums = table.new_zeros((len(touched), table.shape[1]))
        result = {name: torch.empty_like(value) for name, value in private.items()}
        dense: State = {}
        loss = 0.0
        size, beside = self.config.block_size, self.rows_beside
        for group in batches.groups(size, self.dtype, device, beside):
            start = table[group.items]
            rows = start.clone()
            own = move(take_users(private, torch.from_numpy(group.users)), device)
            own = self.begin(shared, own)
            tuned = self.tune(group, rows, own, data, round)
            place = torch.from_numpy(place_of[batches.entries(group.users)]).to(device)
            sums.index_add_(0, place, (rows - start)[group.valid])
            for name, value in tuned.own.items():
                result[name][group.users] = value.to(result[name].device)
            for name, value in tuned.dense.items():
                dense[name] = dense[name] + value.cpu() if name in dense else value.cpu()
            loss += float(tuned.losses.double().sum())
        self._refuse_divergence(sums)
        index = torch.from_numpy(touched)
        found = {self.table: (index, sums.cpu())}
        if self.config.row_average:
            count = np.bincount(place_of, minlength=len(touched))[:, None]
            found["touched"] = (index, torch.from_numpy(count).to(self.dtype))
        return Update(found, dense, data.num_users, loss, len(batches.items)), result

    def _refuse_divergence(self, change: Tensor) -> None:
        if not bool(torch.isfinite(change).all()):
            raise FederationError(
                f"{self.config.algorithm} has diverged: rows are not finite after local steps "
                f"with {self.rates}"
            )


class DeltaAlgorithm(ChangeAlgorithm[DeltaConfigT]):
    """`ChangeAlgorithm` with local SGD; the table is all that is shared, ``items`` (M, d)."""

    @property
    def item_rate(self) -> float:
        """Learning rate of item rows on the mean loss of a minibatch."""
        return self.config.item_rate

    @property
    def rates(self) -> str:
        """See `ChangeAlgorithm.rates`."""
        config = self.config
        return (
            f"local-lr {config.local_lr:g} and item-lr {config.item_lr:g} (a rate of "
            f"{config.item_rate:g} on the mean loss); lower one of them"
        )

    def init_server(self) -> ServerState:
        """See `Algorithm.init_server`."""
        table = self.config.first_table(self.num_items, self.table)
        return ServerState(self.cast({self.table: table, **self.no_counts}))
