"""Algorithms that send the gradient of a shared model: one step of the server in a round.

A client steps its private vector and sends the gradient of the shared tensors, the server averages
it over the round's users and takes one step of its optimiser. This is the exchange of FedRecGEL
(arXiv 2603.11503); with both radii 0 it is what its authors compare with as FedNCF.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.algorithms.base import Algorithm, Download, ServerState
from fedrecgel.common.algorithms.view import ScorerView
from fedrecgel.common.blocks import cut_blocks
from fedrecgel.common.config import Config, Scalar, setting
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.hashing import Keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.optimizers import SERVER_OPTIMIZERS, adam_state, adam_step, server_optimizer
from fedrecgel.common.samples import Samples, draw_samples
from fedrecgel.common.scorers import make_scorer
from fedrecgel.common.scorers.base import Block, Gradients, Kernel
from fedrecgel.common.scorers.squares import GRAM, SquaresKernel, gram_of, through_gram
from fedrecgel.common.sharpness import ascent_scale
from fedrecgel.common.state import (
    State,
    Tensors,
    Update,
    move,
    resolve_device,
    take_users,
)

AVERAGE = "average/"
"""Prefix of the averaged shared tensors among the server's own."""


@dataclass(frozen=True, kw_only=True)
class GradientConfig(Config):
    """Settings of algorithms that send the gradient of a shared model."""

    scorer: str = setting("neumf", "scoring function", choices=("neumf", "dot"))
    embedding_dim: int = setting(32, "size of the embeddings (neumf: of its product part)", low=1)
    init_std: float = setting(0.01, "standard deviation of initial embeddings", low=0)
    loss: str = setting(
        "chunked-sum",
        "chunked-sum: means over chunks of 128 samples, summed (paper); mean over all samples; or "
        "squares over the whole catalogue, which draws no negatives (scorer dot)",
        choices=("chunked-sum", "mean", "squares"),
    )
    unknown_weight: float = setting(
        0.1, "loss squares: weight of the items that a user does not have", low=0, high=1
    )
    private_optimizer: str = setting(
        "adam",
        "adam; or newton, which finds the private vector of least loss (loss squares)",
        choices=("adam", "newton"),
    )
    local_lr: float = setting(0.1, "learning rate of the private Adam", low=0)
    private_steps: int = setting(
        1, "private steps a round; the last is taken with the shared gradient", low=1
    )
    private_weight_decay: float = setting(0.0, "L2 penalty on the private vector", low=0)
    server_optimizer: str = setting(
        "adam", "torch optimiser of the server", choices=SERVER_OPTIMIZERS
    )
    server_lr: float = setting(0.001, "learning rate of the server", low=0)
    item_weight_decay: float = setting(0.0, "L2 penalty on the item rows touched in a round", low=0)
    average: float = setting(
        0.0,
        "users are scored with an average of the shared tensors over rounds, of which each round "
        "keeps this share; 0 = with the latest",
        low=0,
        high=0.9999,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss == "squares" and self.scorer != "dot":
            raise ConfigError(
                f"loss squares needs scorer dot, not {self.scorer}; set loss=mean and "
                "private-optimizer=adam as well, or preset paper"
            )
        if self.private_optimizer == "newton":
            if self.loss != "squares":
                raise ConfigError(
                    f"private-optimizer newton needs loss squares, not {self.loss}; set "
                    "private-optimizer=adam as well"
                )
            if self.private_weight_decay == 0:
                raise ConfigError("private-optimizer newton needs a private-weight-decay above 0")


GradientConfigT = TypeVar("GradientConfigT", bound=GradientConfig)


class GradientAlgorithm(Algorithm[GradientConfigT]):
    """Private vector stepped by Adam on the client, shared gradient averaged by the server.

    Shared are ``items`` (M, D) and the scorer's network; private are ``user`` (P,) and the moments
    of its Adam. The radii of `radii` make the gradients sharpness-aware
    (`fedrecgel.common.sharpness`). Loss ``squares`` shares ``gram`` (P, P) as well
    (`fedrecgel.common.scorers.squares`).
    """

    sends: ClassVar[Literal["gradient", "change"]] = "gradient"

    search: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "private-weight-decay": (1.0, 3.0, 5.0),
        "item-weight-decay": (1e-3, 3e-3, 1e-2),
        "unknown-weight": (0.03, 0.1, 0.3),
        "server-lr": (0.05, 0.1),
    }
    search_sampled: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "server-lr": (0.001, 0.01, 0.03),
        "local-lr": (0.03, 0.1),
        "private-steps": (1, 5),
        "private-weight-decay": (0.0, 3e-3),
    }
    """`search` where the loss is over sampled negatives."""
    scored_with: ClassVar[str] = "global items, own vector"

    @classmethod
    def search_for(cls, config: Config) -> Mapping[str, tuple[Scalar, ...]]:
        """See `Algorithm.search_for`."""
        squares = getattr(config, "loss", "") == "squares"
        return cls.search if squares else cls.search_sampled

    @property
    def radii(self) -> tuple[float, float]:
        """Perturbation radii of the shared and of the private group."""
        return 0.0, 0.0

    def __init__(self, config: GradientConfigT, num_items: int) -> None:
        super().__init__(config, num_items)
        self.scorer = make_scorer(config.scorer, config.embedding_dim)
        self._squares = config.loss == "squares"
        gram = {GRAM} if self._squares else set()
        self.tensors = Tensors(
            shared=frozenset({"items", *self.scorer.network_shapes, *gram}),
            item_rows=frozenset({"items"}),
            private=frozenset({"user", "adam_mean", "adam_square", "adam_step"}),
        )

    def init_server(self) -> ServerState:
        """See `Algorithm.init_server`."""
        config = self.config
        items = self.scorer.init_items(self.num_items, config.seed, config.init_std)
        shared = self.cast({"items": items, **self.scorer.init_network(config.seed)})
        optimizer = server_optimizer(config.server_optimizer, shared.values(), config.server_lr)
        if self._squares:
            shared[GRAM] = gram_of(shared["items"])  # it follows from the items: no step of its own
        return ServerState(shared, optimizer=optimizer)

    def init_private(self, keys: Keys) -> State:
        """See `Algorithm.init_private`."""
        user = self.scorer.init_users(keys, self.config.seed, self.config.init_std).to(self.dtype)
        return {"user": user, **adam_state(user)}

    def aggregate(self, server: ServerState, updates: dict[int, Update], round: int) -> None:
        """One step of the server's optimiser on the mean gradient over the accepted users."""
        update, optimizer = updates[-1], server.optimizer
        assert optimizer is not None
        for name, value in server.shared.items():
            value.grad = torch.zeros_like(value)
            if name in update.rows:
                index, rows = update.rows[name]
                decay = self.config.item_weight_decay * value[index]
                value.grad[index] = rows / update.users + decay
            elif name in update.dense:
                value.grad += update.dense[name] / update.users
        items = server.shared["items"]
        if self._squares:
            assert items.grad is not None
            items.grad[:, :-1] += through_gram(items, update.dense[GRAM] / update.users)
        optimizer.step()
        if self._squares:
            server.shared[GRAM].copy_(gram_of(items))
        if self.config.average > 0:
            self._average(server)

    def _average(self, server: ServerState) -> None:
        """Move the average on; it begins with the first round."""
        for name, value in server.shared.items():
            kept = server.auxiliary.setdefault(f"{AVERAGE}{name}", value.clone())
            kept.lerp_(value, 1.0 - self.config.average)
        if self._squares:
            server.auxiliary[f"{AVERAGE}{GRAM}"] = gram_of(server.auxiliary[f"{AVERAGE}items"])

    def complete(self, shared: State) -> State:
        """See `Algorithm.complete`."""
        return {**shared, GRAM: gram_of(shared["items"])} if self._squares else shared

    def as_weights(self, update: Update, shared: State) -> Update:
        """See `Algorithm.as_weights`; all item rows move, through gram."""
        if not self._squares:
            return update
        items = shared["items"]
        gradient = torch.zeros_like(items)
        gradient[:, :-1] = through_gram(items, update.dense[GRAM])
        index, rows = update.rows["items"]
        gradient[index] += rows
        everything = {"items": (torch.arange(len(items)), gradient)}
        dense = {name: value for name, value in update.dense.items() if name != GRAM}
        return replace(update, rows=everything, dense=dense)

    def scored(self, server: ServerState) -> State:
        """See `Algorithm.scored`."""
        kept = server.auxiliary
        return {name: kept.get(f"{AVERAGE}{name}", v) for name, v in server.shared.items()}

    def snapshot(self, server: ServerState) -> ServerState:
        """See `Algorithm.snapshot`."""
        return ServerState(self.scored(server)).copy()

    def personal_view(self, download: Download, private: State) -> ScorerView:
        """See `Algorithm.personal_view`."""
        return ScorerView(self.scorer, download.shared, private["user"])

    @property
    def fit_rounds(self) -> int:
        """See `Algorithm.fit_rounds`; Newton is there after its first step, from wherever."""
        return 1 if self.config.private_optimizer == "newton" else super().fit_rounds

    @torch.no_grad()
    def prepared(self, shared: State) -> State:
        """See `Algorithm.prepared`."""
        return {**shared, **self.scorer.prepared(shared["items"], shared)}

    # --- client, one user at a time: autograd, the plain reference ------------------------------

    def local_update(
        self, download: State, private: State, data: Interactions, round: int
    ) -> tuple[Update, State]:
        """See `Algorithm.local_update`."""
        if self._squares:  # in closed form, for one user as for many
            own = {name: value.unsqueeze(0) for name, value in private.items()}
            update, state = self.block_update(Download(download), own, data, round)
            return update, {name: value[0] for name, value in state.items()}
        samples = self._draw(data, round)
        items = torch.from_numpy(samples.items)
        block = Block(
            items, *(torch.from_numpy(w).to(self.dtype) for w in (samples.positive, samples.total))
        )
        network = {name: download[name] for name in self.scorer.network_shapes}
        shared = {"items": download["items"][items], **network}
        user, adam = private["user"], private
        for _ in range(self.config.private_steps - 1):
            user, adam = self._private_step(user, self.private_gradient(block, shared, user), adam)
        gradient, user_gradient, loss = self.gradients(block, shared, user)
        user, adam = self._private_step(user, user_gradient, adam)
        rows = gradient.pop("items")
        update = Update({"items": (items, rows)}, gradient, 1, float(loss), len(items))
        return update, {"user": user, **adam}

    def gradients(self, block: Block, shared: State, user: Tensor) -> tuple[State, Tensor, Tensor]:
        """Gradient by the shared group, by the private group, and the loss, at one point."""
        names = list(shared)
        leaves = [value.detach().requires_grad_() for value in (*shared.values(), user)]
        state = dict(zip(names, leaves[:-1], strict=True))
        loss = block.losses(self.scorer.score(state["items"], state, leaves[-1]))
        *found, user_gradient = torch.autograd.grad(loss, leaves)
        return dict(zip(names, found, strict=True)), user_gradient, loss.detach()

    def private_gradient(self, block: Block, shared: State, user: Tensor) -> Tensor:
        """Gradient by the private group alone."""
        leaf = user.detach().requires_grad_()
        loss = block.losses(self.scorer.score(shared["items"], shared, leaf))
        return torch.autograd.grad(loss, leaf)[0]

    # --- client, many users at once --------------------------------------------------------------

    @torch.no_grad()
    def block_update(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[Update, State]:
        """See `Algorithm.block_update`."""
        device = resolve_device(self.config.device)
        samples = self._draw(data, round)
        touched, place_of = np.unique(samples.items, return_inverse=True)
        shared = move(download.shared, device)
        kernel = self._kernel(shared)
        sums = shared["items"].new_zeros((len(touched), self.scorer.row_size))
        network: State = {}
        result = {name: torch.empty_like(value) for name, value in private.items()}
        loss = 0.0
        size = self.config.block_size or self.scorer.samples_at_once(device)
        for users, place, block in cut_blocks(samples, size, self.dtype, device):
            rows = shared["items"][block.index]
            own = move(take_users(private, torch.from_numpy(users)), device)
            gradients, state = self._train_block(kernel, block, rows, own)
            flat = torch.from_numpy(place_of[place].ravel()).to(device)
            sums.index_add_(0, flat, gradients.rows.flatten(0, 1))
            for name, value in gradients.network.items():
                network[name] = network[name] + value if name in network else value
            for name, value in state.items():
                result[name][users] = value.to(result[name].device)
            loss += float(gradients.losses.double().sum())
        index = torch.from_numpy(touched)
        dense = {name: value.cpu() for name, value in network.items()}
        rows_sum = {"items": (index, sums.cpu())}
        return Update(rows_sum, dense, data.num_users, loss, len(samples.items)), result

    def _kernel(self, shared: State) -> Kernel:
        if self._squares:
            return SquaresKernel(shared[GRAM], self.config.unknown_weight)
        return self.scorer.kernel({name: shared[name] for name in self.scorer.network_shapes})

    def _train_block(
        self, kernel: Kernel, block: Block, rows: Tensor, private: State
    ) -> tuple[Gradients, State]:
        rho_shared, rho_private = self.radii
        user, adam = private["user"], private
        if self.config.private_optimizer == "newton":
            assert isinstance(kernel, SquaresKernel)
            user = kernel.solve(block, rows, self.config.private_weight_decay)
            return kernel.sam_gradients(block, rows, user, rho_shared, 0.0), {**adam, "user": user}
        for _ in range(self.config.private_steps - 1):
            gradient = kernel.private_gradient(block, rows, user)
            if rho_private > 0:
                scale = ascent_scale(gradient.square().sum(-1, keepdim=True), rho_private)
                gradient = kernel.private_gradient(block, rows, user + scale * gradient)
            user, adam = self._private_step(user, gradient, adam)
        gradients = kernel.sam_gradients(block, rows, user, rho_shared, rho_private)
        user, adam = self._private_step(user, gradients.users, adam)
        return gradients, {"user": user, **adam}

    def _private_step(self, user: Tensor, gradient: Tensor, adam: State) -> tuple[Tensor, State]:
        if self.config.private_weight_decay > 0:
            gradient = gradient + self.config.private_weight_decay * user
        return adam_step(user, gradient, adam, self.config.local_lr)

    def _draw(self, data: Interactions, round: int) -> Samples:
        config = self.config
        if self._squares:
            items, offsets = data.distinct
            return Samples(items, np.ones(len(items)), np.ones(len(items)), offsets)
        return draw_samples(
            data,
            num_negatives=config.num_negatives,
            loss=config.loss,
            seed=config.seed,
            round=round,
        )
