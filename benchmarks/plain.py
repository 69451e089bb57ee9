"""PFedRec once more, as plainly as it can be written: one user at a time, tables whole, own draws.

It shares with the package the data and what measures, and nothing of what trains: no blocks, no
hashes, no merged samples. Where both agree, a number is the method's and not the code's
(`benchmarks.reproduction`).
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.data.dataset import Dataset

__all__ = ["train_plain"]

ETA, BATCH, NEGATIVES, DIMENSION = 0.1, 256, 4, 32
"""The published settings."""


def train_plain(
    dataset: Dataset, *, leaky: bool, rounds: int, seed: int
) -> Iterator[dict[str, Tensor]]:
    """Train all users in every round; yield scores (users, items) after each, by way of scoring.

    Negatives are drawn with replacement, where the package draws distinct ones for a positive, and
    the rate of rows is the published one, ``eta * 80 * M``.
    """
    users, items = dataset.num_users, dataset.num_items
    draw, init = np.random.default_rng(seed), torch.Generator().manual_seed(seed)
    train = [dataset.train_of(user).astype(np.int64) for user in range(users)]
    held = np.stack([dataset.validation_items, dataset.test_items], axis=1)  # -1: there is none
    pools = [
        np.setdiff1d(np.arange(items), [*own, *(held[user] if leaky else ())])
        for user, own in enumerate(train)
    ]
    table = torch.randn(items, DIMENSION, generator=init)
    # As torch begins a linear layer, and the same for all users, as published.
    weights, bias = (
        (torch.rand(n, generator=init) * 2 - 1) / DIMENSION**0.5 for n in (DIMENSION, 1)
    )
    weights, bias = weights.repeat(users, 1), bias.repeat(users)
    rate = ETA * 80 * items
    for _ in range(rounds):
        total, scores = torch.zeros_like(table), torch.empty(users, items)
        for user in range(users):
            mine = table.clone()
            negatives = draw.choice(pools[user], NEGATIVES * len(train[user]))
            drawn = np.concatenate([train[user], negatives])
            labels = np.arange(len(drawn)) < len(train[user])
            order = draw.permutation(len(drawn))
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                index = torch.from_numpy(drawn[batch])
                target = torch.from_numpy(labels[batch]).to(table.dtype)
                rows = mine[index]
                slope = (torch.sigmoid(rows @ weights[user] + bias[user]) - target) / len(batch)
                weights[user] -= ETA * (slope @ rows)
                bias[user] -= ETA * slope.sum()
                slope = (torch.sigmoid(rows @ weights[user] + bias[user]) - target) / len(batch)
                mine.index_add_(0, index, torch.outer(slope, weights[user]), alpha=-rate)
            total += mine
            scores[user] = mine @ weights[user] + bias[user]
        table = total / users
        yield {"own": scores, "global": weights @ table.T + bias[:, None]}
