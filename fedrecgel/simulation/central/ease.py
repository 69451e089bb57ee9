"""EASE: linear regression of every item on all others (Steck, WWW 2019), in closed form.

With X (N, M) the train pairs and P = (X'X + l2 I)^-1 the weights are -P / diag(P), zero on the
diagonal. Where there are fewer users than items the same scores follow from an inverse of users x
users: X P = (X X' + l2 I)^-1 X, and diag(P) = (1 - diag(X' (X X' + l2 I)^-1 X)) / l2.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedrecgel.common.errors import DataError
from fedrecgel.common.evaluation import PersonalView
from fedrecgel.simulation.central.training import Training
from fedrecgel.simulation.central.views import ItemWeightView, ScoreView

__all__ = ["MAX_CELLS", "ease"]

MAX_CELLS = 20_000**2
"""Largest table, items x (items or users, the fewer): 1.6 GB in float32; up to three exist."""


def ease(training: Training, params: Mapping[str, float], split: str) -> PersonalView:
    """Fit; ``l2`` is the weight of the squared weights."""
    users, items = training.num_users, training.num_items
    if items * min(users, items) > MAX_CELLS:
        raise DataError(
            f"ease needs a table of {items:,} items x {min(users, items):,}, more than "
            f"{MAX_CELLS / 1e6:,.0f} million numbers; name other methods"
        )
    l2 = float(params["l2"])
    return _by_users(training, l2) if users < items else _by_items(training, l2)


def _by_items(training: Training, l2: float) -> PersonalView:
    table = torch.empty(training.num_items, training.num_items)
    for rows, together in training.together():
        table[rows] = together
    weights = _inverse(table, l2)
    del table
    weights /= -weights.diagonal().clone()
    weights.diagonal().zero_()
    return ItemWeightView(training.histories, weights)


def _by_users(training: Training, l2: float) -> PersonalView:
    users, items = training.pairs
    alike = torch.sparse.mm(training.by_item.T.coalesce(), training.by_item.to_dense())
    scores = torch.sparse.mm(training.by_item, _inverse(alike, l2))  # (M, N): the rows of (XP)'
    del alike
    fitted = torch.zeros(training.num_items).index_add_(0, items, scores[items, users])
    scores /= (-(1.0 - fitted) / l2)[:, None]
    scores[items, users] += 1.0
    return ScoreView(scores)


def _inverse(table: Tensor, l2: float) -> Tensor:
    """Inverse of the table with ``l2`` added to its diagonal; the table is used up."""
    table.diagonal().add_(l2)
    return torch.cholesky_inverse(torch.linalg.cholesky(table))
