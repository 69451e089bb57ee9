"""Initial values of tables: normal numbers that are a function of seed, name and place."""

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.hashing import Keys, mix, normal, uniform

ROWS = 256
"""Rows drawn at once, so that they stay in cache."""


def normal_table(rows: int, size: int, std: float, seed: int, name: str) -> Tensor:
    """(rows, size) float64, each entry N(0, std^2)."""
    table = torch.empty(rows, size, dtype=torch.float64)
    for start in range(0, rows, ROWS):
        part = np.arange(start, min(start + ROWS, rows))
        counter = part[:, None] * size + np.arange(size)
        table[part] = torch.from_numpy(std * normal(mix(name, seed, counter)))
    return table


def normal_users(keys: Keys, size: int, std: float, seed: int, name: str = "user") -> Tensor:
    """(U, size) float64, vectors of users with these keys."""
    table = torch.empty(len(keys), size, dtype=torch.float64)
    for start in range(0, len(keys), ROWS):
        part = slice(start, start + ROWS)
        counter = mix(name, seed, keys[part, None], np.arange(size))
        table[part] = torch.from_numpy(std * normal(counter))
    return table


def uniform_vector(size: int, bound: float, seed: int, name: str) -> Tensor:
    """(size,) float64, each entry uniform in (-bound, bound)."""
    draws = uniform(mix(name, seed, np.arange(size)))
    return torch.from_numpy(bound * (2.0 * draws - 1.0))


def affine_layers(users: int, size: int, seed: int) -> dict[str, Tensor]:
    """``weight`` (U, size) and ``bias`` (U, 1) float64, the same for all users.

    Uniform as of a linear layer of PyTorch with one output.
    """
    weight, bias = (
        uniform_vector(width, size**-0.5, seed, name)
        for name, width in (("weight", size), ("bias", 1))
    )
    return {"weight": weight.repeat(users, 1), "bias": bias.repeat(users, 1)}
