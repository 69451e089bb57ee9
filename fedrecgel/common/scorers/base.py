"""What a scoring function is: shapes, initial values, and the score of a user for item rows."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from fedrecgel.common.hashing import Keys, mix, normal, uniform
from fedrecgel.common.state import State

INITIAL_ROWS = 256
"""Rows whose initial values are drawn at once, so that they stay in cache."""
ACCELERATED = 64
"""How many times larger blocks are on a device other than the CPU."""


@dataclass(frozen=True)
class Block:
    """A padded group of ``U`` users with up to ``S`` distinct items each.

    Attributes
    ----------
    index : (U, S) int64
        Which row of the caller's table each sample reads; padding reads row 0.
    positive, total : (U, S)
        Weights of `fedrecgel.common.samples.Samples`; 0 in the padding, so that it adds nothing.
    """

    index: Tensor
    positive: Tensor
    total: Tensor

    def losses(self, logits: Tensor) -> Tensor:
        """(U,) loss of each user, from logits (U, S)."""
        # From logit 40 on softplus is the identity in float64 too; torch would switch at 20.
        return (self.total * softplus(logits, threshold=40) - self.positive * logits).sum(-1)

    def residual(self, logits: Tensor) -> Tensor:
        """(U, S) derivative of the loss by each logit."""
        return self.total * torch.sigmoid(logits) - self.positive


@dataclass(frozen=True)
class Gradients:
    """Gradients of a block.

    Attributes
    ----------
    rows : (U, S, D)
        By each user's item rows.
    network : State
        By the network, summed over the users of the block.
    users : (U, P)
        By each user's own vector.
    losses : (U,)
        Before any perturbation.
    """

    rows: Tensor
    network: State
    users: Tensor
    losses: Tensor


class Kernel(Protocol):
    """Gradients of a block of users at once, bound to a network; equal to autograd user by user."""

    def private_gradient(self, block: Block, rows: Tensor, users: Tensor) -> Tensor:
        """(U, P) gradient by each user's vector."""

    def sam_gradients(
        self, block: Block, rows: Tensor, users: Tensor, rho_shared: float, rho_private: float
    ) -> Gradients:
        """Shared and private SAM gradients, both taken from (rows, network, users).

        ``rows`` (U, S, D) are the gathered item rows, ``users`` (U, P). With a radius of 0 the
        plain gradient of that group is returned.
        """


class Scorer(ABC):
    """A scoring function with item rows of size ``D``, user vectors of size ``P`` and a network."""

    name: ClassVar[str]
    block_samples: ClassVar[int] = 8192
    """Samples in a block on a CPU when the user sets nothing; a matter of speed alone."""

    row_size: int
    user_size: int
    network_shapes: dict[str, tuple[int, ...]]

    def samples_at_once(self, device: torch.device) -> int:
        """Samples in a block: what fits in a core's cache, or what keeps a GPU busy."""
        return self.block_samples * (1 if device.type == "cpu" else ACCELERATED)

    @abstractmethod
    def score(self, rows: Tensor, network: State, users: Tensor) -> Tensor:
        """Logits (..., S) of item rows (..., S, D) for user vectors (..., P); differentiable.

        The network is one for all, or has the users' leading axes: then each has their own.
        """

    @abstractmethod
    def kernel(self, network: State) -> Kernel:
        """The block computation."""

    @abstractmethod
    def candidates(self, items: Tensor, network: State, users: Tensor, chosen: Tensor) -> Tensor:
        """Scores (B, C) of the item indices ``chosen`` (B, C), without gradient."""

    @abstractmethod
    def catalogue(self, items: Tensor, network: State, users: Tensor) -> Tensor:
        """Scores (B, M) of every row of the item table (M, D), without gradient."""

    def prepared(self, items: Tensor, network: State) -> State:
        """Tensors to add to ``network`` that save `catalogue` work which is the same for all users.

        They must have no name of the network and hold for these ``items`` and weights only.
        """
        return {}

    def init_items(self, num_items: int, seed: int, std: float) -> Tensor:
        """(M, D) item table, float64."""
        items = torch.empty(num_items, self.row_size, dtype=torch.float64)
        columns = np.arange(self.row_size)
        for start in range(0, num_items, INITIAL_ROWS):
            part = np.arange(start, min(start + INITIAL_ROWS, num_items))
            counter = part[:, None] * self.row_size + columns
            items[part] = _normals(std, mix("items", seed, counter))
        return items

    def init_users(self, keys: Keys, seed: int, std: float) -> Tensor:
        """(U, P) vectors of users with these keys, float64."""
        users = torch.empty(len(keys), self.user_size, dtype=torch.float64)
        counter = np.arange(self.user_size)
        for start in range(0, len(keys), INITIAL_ROWS):
            part = slice(start, start + INITIAL_ROWS)
            users[part] = _normals(std, mix("user", seed, keys[part, None], counter))
        return users

    def init_network(self, seed: int) -> State:
        """Initial network, float64; biases 0."""
        network = {}
        for name, shape in self.network_shapes.items():
            draws = uniform(mix("network", seed, name, np.arange(int(np.prod(shape)))))
            values = self._bound(name, shape) * (2.0 * draws - 1.0)
            network[name] = torch.from_numpy(values.reshape(shape))
        return network

    def _bound(self, name: str, shape: tuple[int, ...]) -> float:
        """Half-width of the uniform distribution that a network tensor starts from."""
        return 0.0


def _normals(std: float, keys: Keys) -> Tensor:
    return torch.from_numpy(std * normal(keys))
