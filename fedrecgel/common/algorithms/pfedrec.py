"""PFedRec: a private score function, and an item table that each user tunes to themselves.

Zhang, Long, Zhou, Yan, Zhang, Zhang, Yang: "Dual Personalization on Federated Recommendation",
IJCAI 2023, arXiv 2301.08143. There is no user vector: a user's score function sigma(w . q_i + b)
takes its place. On a minibatch of n samples, the score function first, then the rows under it:

    c_i  = (sigma(w . q_i + b) - y_i) / n
    w    <- w - local-lr * sum_i c_i q_i        b <- b - local-lr * sum_i c_i
    c'_i = the same under the new w and b
    q_i  <- q_i - item-lr * batch-size * c'_i w

The tables are averaged as in `fedrecgel.common.algorithms.delta`. Afterwards a user is scored with
the table that their own last participation left on their device (the second personalisation), not
with the average: ``score-with=global`` takes the average. Of the tuned rows scoring needs nothing
but their scores, and only the rows that the user touched differ from what was downloaded: so the
device keeps these items and scores. Items it did not touch are scored with the newest global rows,
where the published code has those of the user's last download.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.delta import DeltaAlgorithm, DeltaConfig, Tuned
from fedrecgel.common.algorithms.view import LinearView
from fedrecgel.common.config import Config, Scalar, setting
from fedrecgel.common.hashing import Keys
from fedrecgel.common.initial import affine_layers
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.minibatches import Group, put, take
from fedrecgel.common.state import State, Tensors


@dataclass(frozen=True, kw_only=True)
class PFedRecConfig(DeltaConfig):
    """Settings of PFedRec."""

    algorithm: ClassVar[str] = "pfedrec"

    init_std: float = setting(1.0, "standard deviation of initial embeddings", low=0)
    score_with: str = setting(
        "own",
        "own: the table as the user's last round left it (paper); global: the average",
        choices=("own", "global"),
    )
    personal_rows: int = setting(
        2048,
        "tuned rows that a device keeps; of more, those whose scores moved most",
        low=1,
    )


class PFedRec(DeltaAlgorithm[PFedRecConfig]):
    """Shared ``items`` (M, d); private ``weight`` (d,), ``bias`` (1,) and the tuned rows' scores.

    ``own_items`` (C,) are the touched items, ascending, -1 in the padding; ``own_scores`` (C,) what
    the tuned rows score. Neither exists with ``score-with=global``.
    """

    name: ClassVar[str] = "pfedrec"
    config_class: ClassVar[type[Config]] = PFedRecConfig
    citation: ClassVar[str] = (
        "Zhang et al.: Dual Personalization on Federated Recommendation, IJCAI 2023, "
        "arXiv 2301.08143"
    )
    search: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "item_lr": (2.0, 5.0, 20.0, 50.0),
        "local_lr": (0.05, 0.1, 0.5, 2.0),
        "init_std": (0.1, 0.3, 1.0),
        "embedding_dim": (32, 64),
        "num_negatives": (4, 8),
        "score_with": ("own", "global"),
    }
    scored_with: ClassVar[str] = "own rows as last tuned over the shared table"

    def __init__(self, config: PFedRecConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        shared = frozenset({"items"}) | self.counted
        self.capacity = min(config.personal_rows, num_items) if config.score_with == "own" else 0
        own = {"own_items", "own_scores"} if self.capacity else set()
        private = frozenset({"weight", "bias"} | own)
        self.tensors = Tensors(shared=shared, item_rows=shared, private=private)

    def init_private(self, keys: Keys) -> State:
        """See `Algorithm.init_private`: the same for all users, as published."""
        config, users = self.config, len(keys)
        state = self.cast(affine_layers(users, config.embedding_dim, config.seed))
        if self.capacity:
            state["own_items"] = torch.full((users, self.capacity), -1, dtype=torch.int32)
            state["own_scores"] = torch.zeros((users, self.capacity), dtype=self.dtype)
        return state

    def tune(self, group: Group, rows: Tensor, own: State, data: Interactions, round: int) -> Tuned:
        """See `DeltaAlgorithm.tune`."""
        start = rows.clone() if 0 < self.capacity < rows.shape[1] - 1 else rows
        weight, bias = own["weight"], own["bias"]
        losses = weight.new_zeros(len(weight))
        for block in group.blocks():
            some = take(rows, block)
            logits = _scores(some, weight, bias)
            losses += block.losses(logits)
            residual = block.residual(logits)
            by_weight = torch.bmm(residual.unsqueeze(1), some).squeeze(1)
            weight = weight - self.config.local_lr * by_weight
            bias = bias - self.config.local_lr * residual.sum(-1, keepdim=True)
            residual = block.residual(_scores(some, weight, bias))
            put(rows, block, some - self.item_rate * residual.unsqueeze(-1) * weight.unsqueeze(1))
        state = {"weight": weight, "bias": bias}
        if self.capacity:
            state |= self._tuned(group, start, rows, weight, bias)
        return Tuned(state, losses / group.steps)

    def _tuned(
        self, group: Group, start: Tensor, rows: Tensor, weight: Tensor, bias: Tensor
    ) -> State:
        """Items that the users touched, ascending, and the scores of the tuned rows."""
        scores = _scores(rows, weight, bias)
        items = group.items.masked_fill(~group.valid, self.num_items)
        if rows.shape[1] - 1 > self.capacity:
            moved = (scores - _scores(start, weight, bias)).abs().masked_fill(~group.valid, -1.0)
            kept = moved.topk(self.capacity, dim=1).indices
            items, order = items.gather(1, kept).sort(dim=1)
            scores = scores.gather(1, kept).gather(1, order)
        width = min(items.shape[1], self.capacity)
        own_items = items.new_full((len(items), self.capacity), -1, dtype=torch.int32)
        own_items[:, :width] = items[:, :width].masked_fill(items[:, :width] == self.num_items, -1)
        own_scores = scores.new_zeros((len(items), self.capacity))
        own_scores[:, :width] = scores[:, :width].masked_fill(own_items[:, :width] < 0, 0.0)
        return {"own_items": own_items, "own_scores": own_scores}

    def personal_view(self, download: Download, private: State) -> LinearView:
        """See `Algorithm.personal_view`: the global table, and the user's own scores over it."""
        return LinearView(
            download.shared["items"],
            private["weight"],
            private["bias"],
            private.get("own_items"),
            private.get("own_scores"),
        )


def _scores(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.bmm(rows, weight.unsqueeze(-1)).squeeze(-1) + bias
