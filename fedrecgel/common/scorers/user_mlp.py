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
    """A `PersonalView`: every user's network over one table, or scores that were kept.

    Attributes
    ----------
    items : (M, d)
    users : (U, d)
    network
        With a leading user axis.
    kept : (U, M) or None
        Scores that the users' devices kept.
    has : (U,) bool
        Which users have some.
    """

    mlp: UserMLP
    items: Tensor
    users: Tensor
    network: State
    kept: Tensor | None = None
    has: Tensor | None = None

    @property
    def num_users(self) -> int:
        """Users in the view."""
        return len(self.users)

    @property
    def num_items(self) -> int:
        """Size of the catalogue."""
        return len(self.items)

    @torch.no_grad()
    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        """See `PersonalView.candidates`."""
        users, items = users.to(self.items.device), items.to(self.items.device)
        found = self._found(users, items)
        return found if found is not None else self._scores(users, items)

    @torch.no_grad()
    def catalogue(self, users: Tensor) -> Tensor:
        """See `PersonalView.catalogue`."""
        users = users.to(self.items.device)
        found = self._found(users, None)
        return found if found is not None else self._scores(users, None)

    def _found(self, users: Tensor, items: Tensor | None) -> Tensor | None:
        """Kept scores, and computed ones for those who have none; None where nobody has any."""
        if self.kept is None or self.has is None:
            return None
        found = self.kept[users] if items is None else self.kept[users[:, None], items]
        new = ~self.has[users]
        if new.any():
            found[new] = self._scores(users[new], None if items is None else items[new])
        return found

    def _scores(self, users: Tensor, items: Tensor | None) -> Tensor:
        columns = self.num_items if items is None else items.shape[1]
        size = max(1, SLICE // max(1, columns * self.mlp.embedding_dim))
        parts = []
        for part in torch.split(torch.arange(len(users), device=users.device), size):
            who = users[part]
            network = {name: value[who] for name, value in self.network.items()}
            if items is None:
                rows = self.items.expand(len(who), *self.items.shape)
            else:
                rows = self.items[items[part]]
            parts.append(self.mlp.score(rows, self.users[who], network))
        return torch.cat(parts) if parts else self.items.new_empty((0, columns))
