"""FedRAP: a shared and a private item table, added up.

Li, Long, Zhou: "Federated Recommendation with Additive Personalization", ICLR 2024, arXiv
2301.09109. Of user u, the score of item i is sigma(w_u . (D_ui + C_i) + b_u), with a common table
C, a personal table D_u and an affine layer that both stay on the device. A minibatch's objective is

    mean BCE - lambda_t * mean (D_ui - C_i)^2 + mu_t * mean |C_i|,

means over the minibatch's samples (and entries of their rows). The weights grow over the rounds t:
lambda_t = lambda * tanh(t / 10), mu_t likewise. The released code computes this schedule but uses
the constant weights: ``schedule=none``.

One step of SGD for all three groups, with L2 decay of everything (untouched rows too); both rates
are multiplied by 0.95 after every minibatch and by 0.97 after every round. A user stops before the
last epoch when the mean objective so far changes by less than ``tolerance`` of itself. Upload:
the common table, averaged.

What does not need to be stored or sent is not: rows of the personal table that a user never touched
are the common first table of all users times one number, and rows of C that a user did not touch
only decayed, so that the sum of these decays (``shrinkage``, one number) and the touched rows give
the exact mean of whole tables.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from fedrecgel.common.algorithms.base import Download, ServerState
from fedrecgel.common.algorithms.delta import DeltaAlgorithm, DeltaConfig, Tuned
from fedrecgel.common.algorithms.view import LinearView
from fedrecgel.common.config import Config, Scalar, setting
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.hashing import Keys
from fedrecgel.common.initial import affine_layers
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.minibatches import Group, put, take
from fedrecgel.common.scorers.base import Block
from fedrecgel.common.state import State, Tensors, Update

SCHEDULES = ("tanh", "sin", "on-off", "falling", "none")


@dataclass(frozen=True, kw_only=True)
class FedRAPConfig(DeltaConfig):
    """Settings of FedRAP; defaults are those of the released training script."""

    algorithm: ClassVar[str] = "fedrap"

    init_std: float = setting(1.0, "standard deviation of initial embeddings", low=0)
    local_epochs: int = setting(10, "passes over a user's samples in a round, at most", low=1)
    batch_size: int = setting(2048, "samples in a minibatch", low=1)
    local_lr: float = setting(0.5, "learning rate of the affine layer", low=0)
    item_lr: float = setting(
        200 / 2048,
        "step of a row of both tables by one sample of a full minibatch; the rate on the mean loss "
        "is item-lr * batch-size (published: 200)",
        low=0,
    )
    difference: float = setting(0.1, "weight of the tables' difference (paper: lambda)", low=0)
    sparsity: float = setting(0.1, "weight of the L1 norm of the common table (paper: mu)", low=0)
    schedule: str = setting(
        "tanh",
        "how both weights change over rounds; none: constant, as released",
        choices=SCHEDULES,
    )
    weight_decay: float = setting(1e-4, "L2 decay of everything that is trained", low=0)
    batch_decay: float = setting(0.95, "factor of the rates after a minibatch", low=0, high=1)
    round_decay: float = setting(0.97, "factor of the rates after a round", low=0, high=1)
    tolerance: float = setting(
        1e-4, "relative change of the objective below which a user stops; 0 = never", low=0
    )
    personal_rows: int = setting(
        2048,
        "rows of the personal table that a device keeps, of more those that moved most; 0 = all",
        low=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, rate in (("local-lr", self.local_lr), ("item-lr * batch-size", self.item_rate)):
            if rate * self.weight_decay >= 1:
                raise ConfigError(
                    f"{name} of {rate:g} times weight-decay {self.weight_decay:g} is 1 or more, so "
                    "that one step of decay would remove or reverse what is decayed; lower one"
                )


class FedRAP(DeltaAlgorithm[FedRAPConfig]):
    """Shared ``common`` (M, d), ``shrinkage`` (1,); private the affine layer and personal rows.

    ``personal_items`` (C,) are the items whose personal rows were ever touched, ascending, -1 in
    the padding; ``personal`` (C, d) are these rows; ``personal_decay`` (1,) is what is left of all
    others.
    """

    name: ClassVar[str] = "fedrap"
    config_class: ClassVar[type[Config]] = FedRAPConfig
    citation: ClassVar[str] = (
        "Li, Long, Zhou: Federated Recommendation with Additive Personalization, ICLR 2024, "
        "arXiv 2301.09109"
    )
    search: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "item_lr": (0.001, 0.01, 0.1, 0.5),
        "local_lr": (0.1, 0.5, 2.0),
        "difference": (0.0, 0.01, 0.1),
        "sparsity": (0.0, 0.001, 0.1),
        "weight_decay": (1e-6, 1e-4, 1e-3),
        "init_std": (0.1, 1.0),
        "local_epochs": (2, 10),
    }
    scored_with: ClassVar[str] = "shared plus own table, own affine layer"
    table = "common"

    def __init__(self, config: FedRAPConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        rows = frozenset({"common"}) | self.counted
        self.capacity = min(config.personal_rows or num_items, num_items)
        private = {"weight", "bias", "personal", "personal_items", "personal_decay"}
        self.tensors = Tensors(
            shared=rows | {"shrinkage"}, item_rows=rows, private=frozenset(private)
        )

    @cached_property
    def first(self) -> Tensor:
        """(M, d) the personal table that every user begins with."""
        return self.config.first_table(self.num_items, "personal").to(self.dtype)

    def weights(self, round: int) -> tuple[float, float]:
        """``(lambda_t, mu_t)``."""
        factor = {
            "tanh": math.tanh(round / 10),
            "sin": abs(math.sin(round / 10)),
            "on-off": float(round // 5 % 2 == 0),
            "falling": 1 / (round + 1),
            "none": 1.0,
        }[self.config.schedule]
        return self.config.difference * factor, self.config.sparsity * factor

    # --- state -------------------------------------------------------------------------------

    def init_server(self) -> ServerState:
        """See `Algorithm.init_server`."""
        server = super().init_server()
        server.shared["shrinkage"] = torch.zeros(1, dtype=self.dtype)
        return server

    def init_private(self, keys: Keys) -> State:
        """See `Algorithm.init_private`: the same for all users, as published."""
        config, users, size = self.config, len(keys), self.config.embedding_dim
        return {
            **self.cast(affine_layers(users, size, config.seed)),
            "personal": torch.zeros((users, self.capacity, size), dtype=self.dtype),
            "personal_items": torch.full((users, self.capacity), -1, dtype=torch.int32),
            "personal_decay": torch.ones((users, 1), dtype=self.dtype),
        }

    def aggregate(self, server: ServerState, updates: dict[int, Update], round: int) -> None:
        """The mean of whole tables; ``shrinkage`` keeps the mean change of untouched rows."""
        shrinkage = updates[-1].dense["shrinkage"] / updates[-1].users
        server.shared["shrinkage"].copy_(shrinkage)
        server.shared["common"] *= 1 + shrinkage
        super().aggregate(server, updates, round)

    # --- client ------------------------------------------------------------------------------

    def tune(self, group: Group, rows: Tensor, own: State, data: Interactions, round: int) -> Tuned:
        """See `DeltaAlgorithm.tune`."""
        personal = self._personal_rows(group, own)
        start = rows.clone()
        state = _Local(self, group, rows, personal, own["weight"], own["bias"], round)
        for epoch in group.epochs():
            if not state.active.any():
                break
            for block in epoch:
                state.step(block)
            state.stop_where_it_settled()
        shrink = state.shrink[:, None, None]
        # The change beyond the decay of an untouched row, whose sum is sent as one number.
        rows.mul_(shrink).add_((1 - shrink) * start)
        kept = self._keep(group, personal.mul_(shrink), own, state.shrink)
        affine = {"weight": state.weight, "bias": state.bias}
        shrinkage = (state.shrink - 1).sum().reshape(1)
        return Tuned({**affine, **kept}, state.first_losses, {"shrinkage": shrinkage})

    def _personal_rows(self, group: Group, own: State) -> Tensor:
        """(U, R + 1, d) personal rows of the touched items, as the last rounds left them."""
        decay = own["personal_decay"].unsqueeze(-1)
        rows: Tensor = self.first.to(decay.device)[group.items] * decay
        kept = own["personal_items"].long()
        kept = kept.masked_fill(kept < 0, self.num_items)
        place = torch.searchsorted(kept, group.items).clamp(max=self.capacity - 1)
        user, row = ((kept.gather(1, place) == group.items) & group.valid).nonzero(as_tuple=True)
        rows[user, row] = own["personal"][user, place[user, row]]
        return rows

    def _keep(self, group: Group, personal: Tensor, own: State, shrink: Tensor) -> State:
        """The stored personal rows with the touched ones among them."""
        decay, absent = own["personal_decay"] * shrink[:, None], self.num_items
        touched = group.items.masked_fill(~group.valid, absent)
        old = own["personal_items"].long()
        old = old.masked_fill(old < 0, absent)
        place = torch.searchsorted(touched, old).clamp(max=touched.shape[1] - 1)
        old = old.masked_fill(touched.gather(1, place) == old, absent)  # the touched ones are newer
        items = torch.cat((touched, old), 1)
        rows = torch.cat((personal, own["personal"] * shrink[:, None, None]), 1)
        if int((items < absent).sum(1).max()) > self.capacity:
            unmoved = self.first.to(rows.device)[items.clamp(max=absent - 1)] * decay.unsqueeze(-1)
            moved = (rows - unmoved).square().sum(-1).masked_fill(items == absent, -1.0)
            best = moved.topk(self.capacity, dim=1).indices
            items, rows = items.gather(1, best), _pick(rows, best)
        items, order = items.sort(dim=1)
        items, order = items[:, : self.capacity], order[:, : self.capacity]
        rows = _pick(rows, order).masked_fill((items == absent).unsqueeze(-1), 0.0)
        items = items.masked_fill(items == absent, -1).to(torch.int32)
        missing = self.capacity - items.shape[1]
        return {
            "personal": torch.nn.functional.pad(rows, (0, 0, 0, missing)),
            "personal_items": torch.nn.functional.pad(items, (0, missing), value=-1),
            "personal_decay": decay,
        }

    # --- scoring -----------------------------------------------------------------------------

    def personal_view(self, download: Download, private: State) -> LinearView:
        """See `Algorithm.personal_view`: the newest common table and the user's own."""
        common, weight, bias = download.shared["common"], private["weight"], private["bias"]
        both = torch.cat((common, self.first.to(common.device)), 1)
        weights = torch.cat((weight, private["personal_decay"] * weight), 1)
        items = private["personal_items"].clamp(min=0).long()
        with torch.no_grad():
            scores = torch.bmm(private["personal"], weight.unsqueeze(-1)).squeeze(-1) + bias
            scores += (weight @ common.T).gather(1, items)
        return LinearView(both, weights, bias, private["personal_items"], scores)


class _Local:
    """A group's local training: the tensors that are stepped, and each user's rates.

    Decay multiplies all local rows at every step. It is kept apart as one number for each user:
    the rows are ``shrink`` times ``common`` and ``personal``.
    """

    def __init__(
        self,
        algorithm: FedRAP,
        group: Group,
        common: Tensor,
        personal: Tensor,
        weight: Tensor,
        bias: Tensor,
        round: int,
    ) -> None:
        self.config = config = algorithm.config
        self.common, self.personal, self.weight, self.bias = common, personal, weight, bias
        self.difference, self.sparsity = algorithm.weights(round)
        size = common.shape[-1]
        self.difference, self.sparsity = self.difference / size, self.sparsity / size
        self.active = torch.ones(len(weight), dtype=torch.bool, device=weight.device)
        self.shrink = weight.new_ones(len(weight))
        self.rate = weight.new_full((len(weight),), config.round_decay ** (round - 1))
        self.item_rate = algorithm.item_rate
        self.batches = group.steps / config.local_epochs
        self.losses = weight.new_zeros(len(weight))
        self.objective = weight.new_zeros(len(weight))
        self.first_losses = self.losses
        self.before = weight.new_full((len(weight),), torch.inf)
        self.epochs = 0

    def step(self, block: Block) -> None:
        """One minibatch of each user who has one, jointly for all groups of parameters."""
        there = self.active & (block.total.sum(-1) > 0)
        own = there.to(self.weight.dtype)
        block = Block(block.index, block.positive * own[:, None], block.total * own[:, None])
        before = self.shrink[:, None, None]
        common, personal = before * take(self.common, block), before * take(self.personal, block)
        both, apart = common + personal, personal - common
        logits = torch.bmm(both, self.weight.unsqueeze(-1)).squeeze(-1) + self.bias
        residual, total = block.residual(logits), block.total.unsqueeze(-1)
        losses = block.losses(logits)
        self.losses = self.losses + losses
        extra = self.sparsity * common.abs() - self.difference * apart.square()
        self.objective += losses + (total * extra).sum((1, 2))

        by_rows = residual.unsqueeze(-1) * self.weight.unsqueeze(1)
        pull = 2 * self.difference * total * apart
        by_common = by_rows + pull + self.sparsity * total * common.sign()
        by_weight = torch.bmm(residual.unsqueeze(1), both).squeeze(1)
        rate = self.rate * own
        local = self.config.local_lr * rate[:, None]
        decay = 1 - self.config.weight_decay * local
        self.weight = decay * self.weight - local * by_weight
        self.bias = decay * self.bias - local * residual.sum(-1, keepdim=True)
        items = (self.item_rate * rate)[:, None, None]
        shrink = 1 - self.config.weight_decay * items
        self.shrink = self.shrink * shrink[:, 0, 0]
        after = self.shrink[:, None, None]
        put(self.common, block, (shrink * common - items * by_common) / after)
        put(self.personal, block, (shrink * personal - items * (by_rows - pull)) / after)
        self.rate = torch.where(there, self.rate * self.config.batch_decay, self.rate)

    def stop_where_it_settled(self) -> None:
        """Stop users whose mean objective since the first epoch hardly changed in this one."""
        self.epochs += 1
        if self.epochs == 1:
            self.first_losses = self.losses / self.batches
        mean = self.objective / self.epochs
        settled = (mean - self.before).abs() < self.config.tolerance * self.before.abs()
        self.before = torch.where(self.active, mean, self.before)
        self.active = self.active & ~settled


def _pick(rows: Tensor, places: Tensor) -> Tensor:
    """(U, K, d) rows (U, R, d) at the places (U, K)."""
    return rows.gather(1, places.unsqueeze(-1).expand(-1, -1, rows.shape[-1]))
