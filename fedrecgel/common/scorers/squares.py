"""Weighted squares over the whole catalogue: a loss without sampled negatives, in closed form.

Hu, Koren, Volinsky: "Collaborative Filtering for Implicit Feedback Datasets", ICDM 2008; its
federated form: Ammad-ud-din et al., arXiv 1901.09888. A user's loss is ``0.5 * sum over all items
of w_i (s_i - y_i)^2`` with score ``s_i = u . v_i``; ``y_i = w_i = 1`` for the user's items, and
``y_i = 0`` with a small weight ``w0`` for all others.

The others enter only through ``gram = V^T V``: their share of the loss is ``0.5 * w0 * (u^T gram u
- sum over the user's items of s_i^2)``. So ``gram`` is a shared tensor like any other: a client
gets it from the server, and sends its gradient by the rows of its own items and by ``gram``. The
server applies the chain rule, ``dV = rows + V (dgram + dgram^T)``. Nobody pays for the size of the
catalogue.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecgel.common.scorers.base import Block, Gradients
from fedrecgel.common.sharpness import ascent_scale

GRAM = "gram"
"""Name of the shared tensor, (P, P)."""
AT_ONCE = 256
"""Users whose (P, P) systems exist at once."""


def gram_of(items: Tensor) -> Tensor:
    """(P, P) ``V^T V`` of item rows ``[v | b]`` (M, P + 1); biases take no part in this loss."""
    vectors = items[:, :-1]
    return vectors.T @ vectors


def through_gram(items: Tensor, gradient: Tensor) -> Tensor:
    """(M, P) what a gradient by gram (P, P) is by the item vectors."""
    return items[:, :-1] @ (gradient + gradient.T)


@dataclass(frozen=True)
class SquaresKernel:
    """`Kernel` of a dot product under this loss; blocks hold the users' own items, each once.

    Parameters
    ----------
    gram : (P, P)
    weight
        ``w0``.
    """

    gram: Tensor
    weight: float

    def private_gradient(self, block: Block, rows: Tensor, users: Tensor) -> Tensor:
        """See `Kernel.private_gradient`."""
        scores = _scores(rows, users)
        residual = block.total * (scores - 1.0 - self.weight * scores)
        own = torch.bmm(residual.unsqueeze(1), rows[..., :-1]).squeeze(1)
        return own + self.weight * users @ self.gram

    def sam_gradients(
        self, block: Block, rows: Tensor, users: Tensor, rho_shared: float, rho_private: float
    ) -> Gradients:
        """See `Kernel.sam_gradients`.

        A step of ``rho_shared`` along the gradient ``r_i u``, ``r_i = w_i (s_i - y_i)``, of all
        rows of the catalogue shifts every score by ``k r_i`` with ``k = rho_shared |u| / |r|``.
        """
        scores = _scores(rows, users)
        wrong = (block.total * (scores - 1.0).square()).sum(-1)
        unknown = ((users @ self.gram) * users).sum(-1) - (block.total * scores.square()).sum(-1)
        unknown = unknown.clamp(min=0.0)  # rounding may take it below
        shift = torch.zeros_like(wrong)
        if rho_shared > 0:
            length = users.square().sum(-1).sqrt()
            shift = length * ascent_scale(wrong + self.weight**2 * unknown, rho_shared)
        others = self.weight * (1.0 + self.weight * shift)
        residual = (1.0 + shift).unsqueeze(-1) * (scores - 1.0) - others.unsqueeze(-1) * scores
        no_bias = torch.cat((users, torch.zeros_like(users[:, :1])), -1)
        by_rows = (block.total * residual).unsqueeze(-1) * no_bias.unsqueeze(1)
        by_gram = 0.5 * (others.unsqueeze(-1) * users).T @ users

        by_users = self.private_gradient(block, rows, users)
        if rho_private > 0:
            scale = ascent_scale(by_users.square().sum(-1, keepdim=True), rho_private)
            by_users = self.private_gradient(block, rows, users + scale * by_users)
        losses = 0.5 * (wrong + self.weight * unknown)
        return Gradients(by_rows, {GRAM: by_gram}, by_users, losses)

    def solve(self, block: Block, rows: Tensor, decay: float) -> Tensor:
        """(U, P) vectors of least loss plus ``0.5 decay |u|^2``: one step of Newton from any."""
        parts = [
            self._solve(block.total[first : first + AT_ONCE], rows[first : first + AT_ONCE], decay)
            for first in range(0, len(rows), AT_ONCE)
        ]
        return torch.cat(parts)

    def _solve(self, total: Tensor, rows: Tensor, decay: float) -> Tensor:
        vectors = rows[..., :-1] * total.unsqueeze(-1)
        own = torch.bmm(vectors.transpose(1, 2), vectors)
        hessian = self.weight * self.gram + (1.0 - self.weight) * own
        hessian.diagonal(dim1=-2, dim2=-1).add_(decay)
        factor = torch.linalg.cholesky(hessian)
        return torch.cholesky_solve(vectors.sum(1).unsqueeze(-1), factor).squeeze(-1)


def _scores(rows: Tensor, users: Tensor) -> Tensor:
    return torch.bmm(rows[..., :-1], users.unsqueeze(-1)).squeeze(-1)
