"""Three users of different sizes over twelve items, and what every calculation by hand needs.

Nothing here is calculated by the package. What it draws, negatives and the order of samples, is
taken from it: draws are hashes of (seed, round, user), and have tests of their own.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedrecgel.common.hashing import mix, user_keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.samples import draw_negatives
from fedrecgel.common.state import Update

Array = NDArray[np.float64]
Sample = tuple[int, float]
"""Item and label."""

TRAIN = [[2, 1, 1], [2], [7, 0, 2, 2, 4]]  # two of them have an item twice
NEGATIVES = 2
KEYS = user_keys(["a", "b", "c"])
ITEMS, SEED = 12, 4
SETTINGS = {"dtype": "float64", "seed": SEED, "num_negatives": NEGATIVES}


def data(users: Sequence[int] = (0, 1, 2)) -> Interactions:
    rows = [TRAIN[user] for user in users]
    offsets = np.cumsum([0, *map(len, rows)])
    return Interactions(np.concatenate(rows), offsets, KEYS[list(users)], ITEMS)


def negatives(user: int, round: int) -> list[list[int]]:
    """Of each interaction."""
    found: list[list[int]] = draw_negatives(data([user]), NEGATIVES, SEED, round).tolist()
    return found


def samples(user: int, round: int) -> list[Sample]:
    """Each interaction, its negatives behind it."""
    pairs = zip(TRAIN[user], negatives(user, round), strict=True)
    return [s for item, others in pairs for s in ((item, 1.0), *((o, 0.0) for o in others))]


def touched(user: int, round: int) -> list[int]:
    return sorted({item for item, _ in samples(user, round)})


def minibatches(user: int, round: int, epochs: int, size: int) -> Iterator[list[list[Sample]]]:
    """Epochs of minibatches; where each user has one, its order is no matter."""
    own = samples(user, round)
    for epoch in range(epochs):
        number = 0 if max(map(len, TRAIN)) * (1 + NEGATIVES) <= size else epoch
        keys = mix("minibatches", SEED, round, number, KEYS[[user]], np.arange(len(own)))
        order = np.argsort(keys >> np.uint64(24), kind="stable")
        shuffled = [own[place] for place in order]
        yield [shuffled[start : start + size] for start in range(0, len(own), size)]


def numbers(*shape: int, step: int, scale: float = 0.9) -> Array:
    """Every ``step``-th of 0..40 (41 is prime), centred: a fixed table without a generator."""
    count = math.prod(shape)
    return (scale * ((np.arange(1, count + 1) * step) % 41 - 20.0) / 20.0).reshape(shape)


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def bce(logit: float, label: float) -> float:
    return math.log1p(math.exp(logit)) - label * logit


def slopes(f: Any, values: Array) -> Array:
    """Derivative of ``f`` by central differences."""
    found = np.zeros_like(values)
    for place in np.ndindex(*values.shape):
        step = np.zeros_like(values)
        step[place] = 1e-5
        found[place] = (f(values + step) - f(values - step)) / 2e-5
    return found


def change_of(table: Array, name: str = "items", **dense: Array) -> Update:
    """What a user sends whose table changed so."""
    index = np.flatnonzero(table.any(1))
    rows = {name: (torch.from_numpy(index), torch.from_numpy(table[index]))}
    own = {key: torch.from_numpy(value) for key, value in dense.items()}
    return Update(rows, own, 1, 0.5, len(index))


def whole(update: Update, name: str) -> Array:
    """The rows of an update put into a table of zeros."""
    index, rows = update.rows[name]
    table = np.zeros((ITEMS, rows.shape[1]))
    table[index.numpy()] = rows.numpy()
    return table


def same(found: Any, expected: Any, atol: float = 1e-10) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=atol)
