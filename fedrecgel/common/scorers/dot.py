"""Dot product of user and item vector plus an item bias: no network, closed-form gradients."""

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding

from fedrecgel.common.scorers.base import Block, Gradients, Scorer
from fedrecgel.common.sharpness import ascent_scale
from fedrecgel.common.state import State


class DotScorer(Scorer):
    """``score = u . v + b``; an item row is ``[v | b]``, so ``D = P + 1``."""

    name: ClassVar[str] = "dot"
    block_samples: ClassVar[int] = 16384

    def __init__(self, embedding_dim: int) -> None:
        self.user_size = embedding_dim
        self.row_size = embedding_dim + 1
        self.network_shapes = {}

    def init_items(self, num_items: int, seed: int, std: float) -> Tensor:
        """(M, D) item table; the biases start at 0."""
        items = super().init_items(num_items, seed, std)
        items[:, -1] = 0.0
        return items

    def score(self, rows: Tensor, network: State, users: Tensor) -> Tensor:
        """See `Scorer.score`."""
        return (rows[..., :-1] @ users.unsqueeze(-1)).squeeze(-1) + rows[..., -1]

    def kernel(self, network: State) -> "DotKernel":
        """See `Scorer.kernel`."""
        return DotKernel()

    def candidates(self, items: Tensor, network: State, users: Tensor, chosen: Tensor) -> Tensor:
        """See `Scorer.candidates`. Works in slices of users that fit in cache."""
        queries = _with_one(users).unsqueeze(-1)
        scores = items.new_empty(chosen.shape)
        step = max(1, self.samples_at_once(items.device) // max(1, chosen.shape[1]))
        for start in range(0, len(users), step):
            part = slice(start, start + step)
            scores[part] = torch.bmm(embedding(chosen[part], items), queries[part]).squeeze(-1)
        return scores

    def catalogue(self, items: Tensor, network: State, users: Tensor) -> Tensor:
        """See `Scorer.catalogue`."""
        return torch.addmm(items[:, -1], users, items[:, :-1].T)


class DotKernel:
    """Closed form: the gradient of row ``i`` is ``c_i [u | 1]``, of the user ``sum c_i v_i``."""

    def private_gradient(self, block: Block, rows: Tensor, users: Tensor) -> Tensor:
        """See `Kernel.private_gradient`."""
        return _user_gradient(block.residual(_logits(rows, users)), rows)

    def sam_gradients(
        self, block: Block, rows: Tensor, users: Tensor, rho_shared: float, rho_private: float
    ) -> Gradients:
        """See `Kernel.sam_gradients`."""
        logits = _logits(rows, users)
        residual = block.residual(logits)
        user_gradient = _user_gradient(residual, rows)

        shared_residual = residual
        if rho_shared > 0:
            # Row i moves by scale * c_i * [u | 1]: its logit shifts by scale * c_i * |[u | 1]|^2.
            length = users.square().sum(-1, keepdim=True) + 1.0
            scale = ascent_scale(residual.square().sum(-1, keepdim=True) * length, rho_shared)
            shared_residual = block.residual(logits + scale * length * residual)
        row_gradient = shared_residual.unsqueeze(-1) * _with_one(users).unsqueeze(1)

        if rho_private > 0:
            scale = ascent_scale(user_gradient.square().sum(-1, keepdim=True), rho_private)
            user_gradient = self.private_gradient(block, rows, users + scale * user_gradient)
        return Gradients(row_gradient, {}, user_gradient, block.losses(logits))


def _logits(rows: Tensor, users: Tensor) -> Tensor:
    return torch.bmm(rows, _with_one(users).unsqueeze(-1)).squeeze(-1)


def _user_gradient(residual: Tensor, rows: Tensor) -> Tensor:
    return torch.bmm(residual.unsqueeze(1), rows).squeeze(1)[:, :-1]


def _with_one(users: Tensor) -> Tensor:
    """``[u | 1]``, so that whole rows multiply it: slicing the bias off would copy them."""
    return torch.cat((users, torch.ones_like(users[:, :1])), -1)
