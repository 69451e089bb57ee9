"""Central models of user and item vectors, trained on cross-entropy with sampled negatives.

They are what a federated method with private user vectors and shared item vectors would be if one
machine had everything: ``mf`` is an inner product plus an item bias (Rendle et al., "Neural
Collaborative Filtering vs. Matrix Factorization Revisited", RecSys 2020, show how strong that is),
``neumf`` the network of He et al., "Neural Collaborative Filtering", WWW 2017.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from fedrecgel.common.algorithms.view import ScorerView
from fedrecgel.common.evaluation import PersonalView
from fedrecgel.common.hashing import mix
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.samples import draw_negatives
from fedrecgel.common.scorers.neumf import NeuMFScorer
from fedrecgel.simulation.central.training import Training
from fedrecgel.simulation.central.views import FactorView

__all__ = ["EPOCHS_MF", "EPOCHS_NEUMF", "mf", "neumf", "pairs_of"]

EPOCHS_MF = (15, 30)
EPOCHS_NEUMF = (5, 10, 20)
NEGATIVES = 4
"""For each positive, drawn anew in each epoch."""
SEED = 0

_MF_DIM, _MF_BATCH, _MF_RATE, _INIT = 64, 8192, 0.1, 0.1
_NEUMF_DIM, _NEUMF_BATCH = 16, 4096

Batch = tuple[Tensor, Tensor, Tensor]
"""Users, items and labels, (B,) each."""


def mf(training: Training, params: Mapping[str, float], split: str) -> PersonalView:
    """Adagrad on minibatches; ``l2`` weighs the squared vectors of each sample.

    One training serves every number of ``epochs`` of the grid.
    """
    l2 = float(params["l2"])
    steps = _kept(training, f"mf {l2}", lambda: _train_mf(training, l2))
    users, items = steps[int(params["epochs"])]
    return FactorView(users, items)


def neumf(training: Training, params: Mapping[str, float], split: str) -> PersonalView:
    """Adam on minibatches with learning rate ``rate``; how many ``epochs`` is its regularisation.

    Embeddings of 16 for the product and 64 for the tower: half of the size that FedRecGEL's has.
    """
    rate = float(params["rate"])
    steps = _kept(training, f"neumf {rate}", lambda: _train_neumf(training, rate))
    users, items, *network = steps[int(params["epochs"])]
    scorer = NeuMFScorer(_NEUMF_DIM)
    shared = dict(zip(scorer.network_shapes, network, strict=True))
    return ScorerView(scorer, {"items": items, **shared}, users)


def pairs_of(training: Training) -> Interactions:
    """Train pairs of all users, each once."""
    known, data = training.histories, training.dataset
    offsets = np.asarray(known.offsets, dtype=np.int64)
    return Interactions(known.items, offsets, data.user_keys, data.num_items)


def _kept(
    training: Training, key: str, train: Callable[[], dict[int, Sequence[Tensor]]]
) -> dict[int, Sequence[Tensor]]:
    if key not in training.trained:
        training.trained[key] = train()
    return training.trained[key]


def _epoch(data: Interactions, epoch: int, largest: int) -> Iterator[Batch]:
    """Positives and fresh negatives in a random order, in minibatches: at least some thirty."""
    size = min(largest, max(256, len(data.items) * (1 + NEGATIVES) // 32))
    negatives = draw_negatives(data, NEGATIVES, "central", SEED, epoch)
    items = np.concatenate([data.items[:, None].astype(np.int64), negatives], axis=1)
    valid = items >= 0
    labels = np.zeros(items.shape, dtype=np.float32)
    labels[:, 0] = 1.0
    users = np.broadcast_to(data.owners[:, None], items.shape)
    order = np.argsort(mix("central order", SEED, epoch, np.arange(np.count_nonzero(valid))))
    columns = [torch.from_numpy(column[valid][order]) for column in (users, items, labels)]
    yield from zip(*(torch.split(column, size) for column in columns), strict=True)


def _normal(purpose: str, rows: int, columns: int, std: float) -> Tensor:
    generator = torch.Generator().manual_seed(int(mix(purpose, SEED)) & 0x7FFFFFFF)
    return std * torch.randn(rows, columns, generator=generator)


def _train_mf(training: Training, l2: float) -> dict[int, Sequence[Tensor]]:
    """The vectors after each number of epochs: ``[u | 1]`` (N, d + 1) and ``[v | b]`` (M, d + 1).

    The gradients are written out: dense ones of a tenth of the tables would cost autograd more.
    """
    users = _normal("mf users", training.num_users, _MF_DIM + 1, _INIT)
    items = _normal("mf items", training.num_items, _MF_DIM + 1, _INIT)
    users[:, -1], items[:, -1] = 1.0, 0.0
    squares = [torch.full_like(table, 1e-8) for table in (users, items)]
    data = pairs_of(training)
    found: dict[int, Sequence[Tensor]] = {}
    for epoch in range(1, max(EPOCHS_MF) + 1):
        for who, what, label in _epoch(data, epoch, _MF_BATCH):
            p, q = users[who], items[what]
            residual = (torch.sigmoid((p * q).sum(1)) - label)[:, None]
            by_user = torch.zeros_like(users).index_add_(0, who, residual * q + l2 * p)
            by_item = torch.zeros_like(items).index_add_(0, what, residual * p + l2 * q)
            by_user[:, -1] = 0.0  # the 1 that meets the item's bias
            for table, gradient, square in zip(
                (users, items), (by_user, by_item), squares, strict=True
            ):
                square.addcmul_(gradient, gradient)
                table.addcdiv_(gradient, square.sqrt(), value=-_MF_RATE)
        if epoch in EPOCHS_MF:
            found[epoch] = [users.clone(), items.clone()]
    return found


def _train_neumf(training: Training, rate: float) -> dict[int, Sequence[Tensor]]:
    """User vectors, item rows and the network's tensors after each number of epochs."""
    scorer = NeuMFScorer(_NEUMF_DIM)
    network = {name: value.float() for name, value in scorer.init_network(SEED).items()}
    tables = [
        _normal("neumf users", training.num_users, scorer.user_size, _INIT),
        _normal("neumf items", training.num_items, scorer.row_size, _INIT),
    ]
    leaves = [value.requires_grad_() for value in (*tables, *network.values())]
    users, items = leaves[:2]
    optimizer = torch.optim.Adam(leaves, lr=rate)
    data = pairs_of(training)
    found: dict[int, Sequence[Tensor]] = {}
    for epoch in range(1, max(EPOCHS_NEUMF) + 1):
        for who, what, label in _epoch(data, epoch, _NEUMF_BATCH):
            optimizer.zero_grad()
            logits = scorer.score(items[what][:, None], network, users[who])[:, 0]
            loss = binary_cross_entropy_with_logits(logits, label)
            torch.autograd.backward(loss)
            optimizer.step()
        if epoch in EPOCHS_NEUMF:
            found[epoch] = [value.detach().clone() for value in leaves]
    return found
