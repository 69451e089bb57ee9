"""FedMF: matrix factorisation with private user vectors and a shared item table.

Chai, Wang, Chen, Yang: "Secure Federated Matrix Factorization", IEEE Intelligent Systems 36, 2021,
arXiv 1906.05108. As the baseline of the implicit-feedback literature (PFedRec, GPFedRec, FedRecGEL
and others compare with it so): binary cross-entropy on sigma(u . q_i) instead of squared errors of
ratings, no encryption, and the mean of the users' tables instead of the sum of their gradients.

One client's step on a minibatch of n samples, both groups from the same point:

    c_i = (sigma(u . q_i) - y_i) / n
    u   <- u - local-lr * sum_i c_i q_i
    q_i <- q_i - item-lr * batch-size * c_i u
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.delta import DeltaAlgorithm, DeltaConfig, Tuned
from fedrecgel.common.algorithms.view import LinearView
from fedrecgel.common.config import Config, Scalar
from fedrecgel.common.hashing import Keys
from fedrecgel.common.initial import normal_users
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.minibatches import Group, put, take
from fedrecgel.common.state import State, Tensors


@dataclass(frozen=True, kw_only=True)
class FedMFConfig(DeltaConfig):
    """Settings of FedMF."""

    algorithm: ClassVar[str] = "fedmf"


class FedMF(DeltaAlgorithm[FedMFConfig]):
    """Shared ``items`` (M, d), private ``user`` (d,); scores are u . q_i."""

    name: ClassVar[str] = "fedmf"
    config_class: ClassVar[type[Config]] = FedMFConfig
    citation: ClassVar[str] = (
        "Chai et al.: Secure Federated Matrix Factorization, IEEE Intelligent Systems 36, 2021, "
        "arXiv 1906.05108"
    )
    scored_with: ClassVar[str] = "global items, own vector"
    search: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "item_lr": (2.0, 5.0, 20.0, 50.0),
        "local_lr": (0.1, 0.5, 2.0),
        "init_std": (0.03, 0.1, 0.3),
        "embedding_dim": (32, 64),
        "num_negatives": (4, 8),
    }

    def __init__(self, config: FedMFConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        shared = frozenset({"items"}) | self.counted
        self.tensors = Tensors(shared=shared, item_rows=shared, private=frozenset({"user"}))

    def init_private(self, keys: Keys) -> State:
        """See `Algorithm.init_private`."""
        config = self.config
        user = normal_users(keys, config.embedding_dim, config.init_std, config.seed)
        return {"user": user.to(self.dtype)}

    def tune(self, group: Group, rows: Tensor, own: State, data: Interactions, round: int) -> Tuned:
        """See `DeltaAlgorithm.tune`."""
        user = own["user"]
        losses = user.new_zeros(len(user))
        for block in group.blocks():
            some = take(rows, block)
            logits = torch.bmm(some, user.unsqueeze(-1)).squeeze(-1)
            losses += block.losses(logits)
            residual = block.residual(logits)
            by_user = torch.bmm(residual.unsqueeze(1), some).squeeze(1)
            step = self.item_rate * residual.unsqueeze(-1) * user.unsqueeze(1)
            put(rows, block, some - step)
            user = user - self.config.local_lr * by_user
        return Tuned({"user": user}, losses / group.steps)

    def personal_view(self, download: Download, private: State) -> LinearView:
        """See `Algorithm.personal_view`: the global table and the user's own vector."""
        return LinearView(download.shared["items"], private["user"])
