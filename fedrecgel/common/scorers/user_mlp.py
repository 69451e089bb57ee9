"""A small network for each user, with weights of their own: the score of [user | item row].

ReLU layers of d, d/2 and d/4 numbers and a linear output; with d = 32 the 64-32-16-8-1 of GPFedRec.
Weights carry a leading user axis, so that one product serves many users.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecgel.common.initial import uniform_vector
from fedrecgel.common.scorers.base import Block
from fedrecgel.common.state import State

SLICE = 1 << 21
"""Numbers of a hidden layer held at once while scoring."""


@dataclass(frozen=True)
class UserMLP:
    """The network for vectors of size ``embedding_dim``; tensors are ``mlp.<layer>.<part>``."""

    embedding_dim: int

    @property
    def sizes(self) -> list[int]:
        """Width of the input and of each layer."""
        d = self.embedding_dim
        return [2 * d, d, max(1, d // 2), max(1, d // 4), 1]

    @property
    def names(self) -> list[str]:
        """Names of the tensors, layer by layer."""
        layers = range(len(self.sizes) - 1)
        return [f"mlp.{layer}.{part}" for layer in layers for part in ("weight", "bias")]

    def init(self, users: int, seed: int) -> State:
        """Initial weights (U, out, in) and biases (U, 1, out), float64, alike for all users.

        Uniform within 1 / sqrt(in), as torch's linear layers.
        """
        found = {}
        for layer, (width, out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            for part, shape in (("weight", (out, width)), ("bias", (1, out))):
                name = f"mlp.{layer}.{part}"
                values = uniform_vector(shape[0] * shape[1], width**-0.5, seed, name)
                found[name] = values.view(shape).repeat(users, 1, 1)
        return found

    def score(self, rows: Tensor, user: Tensor, network: State) -> Tensor:
        """(U, S) logits of item rows (U, S, d) for user vectors (U, d)."""
        d = self.embedding_dim
        # The first layer acts on [user | item]: its user half is one vector for each user.
        weight = network["mlp.0.weight"]
        first = network["mlp.0.bias"] + torch.bmm(user.unsqueeze(1), weight[..., :d].mT)
        hidden = torch.baddbmm(first, rows, weight[..., d:].mT)
        for layer in range(1, len(self.sizes) - 1):
            parts = (network[f"mlp.{layer}.{part}"] for part in ("bias", "weight"))
            bias, weight = parts
            hidden = torch.baddbmm(bias, torch.relu(hidden), weight.mT)
        return hidden.squeeze(-1)

    def gradients(
        self, block: Block, rows: Tensor, user: Tensor, network: State
    ) -> tuple[Tensor, Tensor, State, Tensor]:
        """Gradients by rows, user vectors and weights, and the losses (U,)."""
        with torch.enable_grad():
            values = (rows, user, *(network[name] for name in self.names))
            leaves = [value.detach().requires_grad_() for value in values]
            own = dict(zip(self.names, leaves[2:], strict=True))
            losses = block.losses(self.score(leaves[0], leaves[1], own))
            by_rows, by_user, *by_network = torch.autograd.grad(losses.sum(), leaves)
        return by_rows, by_user, dict(zip(self.names, by_network, strict=True)), losses.detach()


@dataclass(frozen=True)
class UserMLPView:
    """A `PersonalView`: every user's network over a table of their own or one for all.

    Attributes
    ----------
    items : (U, M, d)
        May be a broadcast of one table.
    users : (U, d)
    """

    mlp: UserMLP
    items: Tensor
    users: Tensor
    network: State

    @property
    def num_users(self) -> int:
        """Users in the view."""
        return len(self.users)

    @property
    def num_items(self) -> int:
        """Size of the catalogue."""
        return self.items.shape[1]

    @torch.no_grad()
    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        """See `PersonalView.candidates`."""
        parts = zip(
            *(torch.split(t, self._size(items.shape[1])) for t in (users, items)), strict=True
        )
        return torch.cat([self._score(who, self.items[who[:, None], what]) for who, what in parts])

    @torch.no_grad()
    def catalogue(self, users: Tensor) -> Tensor:
        """See `PersonalView.catalogue`."""
        parts = torch.split(users, self._size(self.num_items))
        return torch.cat([self._score(who, self.items[who]) for who in parts])

    def _size(self, rows: int) -> int:
        return max(1, SLICE // max(1, rows * self.mlp.embedding_dim))

    def _score(self, who: Tensor, rows: Tensor) -> Tensor:
        network = {name: value[who] for name, value in self.network.items()}
        return self.mlp.score(rows, self.users[who], network)
