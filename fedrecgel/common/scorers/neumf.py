"""NeuMF, the scorer of the paper: an element-wise product beside a small tower of linear layers.

He, Liao, Zhang, Nie, Hu, Chua: "Neural Collaborative Filtering", WWW 2017, arXiv 1708.05031,
with the sizes that FedRecGEL (arXiv 2603.11503) uses for ``embedding-dim`` 32: product part 32,
tower 2 x 128 -> 128 -> 64 -> 32 with ReLU, both outputs (32 + 32) -> linear -> one logit.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import embedding, pad

from fedrecgel.common.scorers.base import Kernel, Scorer
from fedrecgel.common.scorers.neumf_block import NeuMFKernel
from fedrecgel.common.state import State

LAYERS = ("tower.0", "tower.1", "tower.2")
SLICE_USERS = 8
"""Users whose catalogue is scored together."""
ITEM_HALF, WEIGHTED = "tower.0.items", "output.items"
"""Prepared, one column an item: the item part of the first layer, in pieces (n, 4d, `COLUMNS`) that
each lie together (the last one padded), and the product part times the output's weights."""
COLUMNS = 768
"""Items of a piece: its activations fit in a core's cache, beside those of the piece before."""


class NeuMFScorer(Scorer):
    """With ``d = embedding_dim``: rows and users are ``[product d | tower 4d]``, so ``D = P = 5d``.

    The network has ``tower.i.weight`` (out, in), ``tower.i.bias``, ``output.weight`` (1, 2d) and
    ``output.bias``. The input of the first layer is ``[user 4d | item 4d]``, that of the output
    layer ``[product d | tower d]``.
    """

    name: ClassVar[str] = "neumf"
    block_samples: ClassVar[int] = 1536

    def __init__(self, embedding_dim: int) -> None:
        d = embedding_dim
        self.product_size, self.tower_size = d, 4 * d
        self.row_size = self.user_size = 5 * d
        sizes = (8 * d, 4 * d, 2 * d, d)
        self.network_shapes = {}
        for name, fan_in, fan_out in zip(LAYERS, sizes[:-1], sizes[1:], strict=True):
            self.network_shapes[f"{name}.weight"] = (fan_out, fan_in)
            self.network_shapes[f"{name}.bias"] = (fan_out,)
        self.network_shapes["output.weight"] = (1, 2 * d)
        self.network_shapes["output.bias"] = (1,)

    def _bound(self, name: str, shape: tuple[int, ...]) -> float:
        if name.endswith("bias"):
            return 0.0
        if name == "output.weight":
            return math.sqrt(3.0 / shape[1])  # Kaiming uniform, a = 1, gain of the sigmoid
        return math.sqrt(6.0 / sum(shape))  # Xavier uniform

    def score(self, rows: Tensor, network: State, users: Tensor) -> Tensor:
        """See `Scorer.score`."""
        d = self.product_size
        users = users.unsqueeze(-2)
        product = rows[..., :d] * users[..., :d]
        hidden = torch.cat((users[..., d:].expand_as(rows[..., d:]), rows[..., d:]), -1)
        for name in LAYERS:
            bias = network[f"{name}.bias"].unsqueeze(-2)
            hidden = torch.relu(hidden @ network[f"{name}.weight"].mT + bias)
        output = torch.cat((product, hidden), -1) @ network["output.weight"].mT
        return (output + network["output.bias"].unsqueeze(-2)).squeeze(-1)

    def kernel(self, network: State) -> Kernel:
        """See `Scorer.kernel`."""
        return NeuMFKernel(network, self.product_size)

    def candidates(self, items: Tensor, network: State, users: Tensor, chosen: Tensor) -> Tensor:
        """See `Scorer.candidates`. Works in slices of users that fit in cache."""
        d, (item_half, user_half) = self.product_size, self._first_layer(items, network, users)
        queries = (users[:, :d] * network["output.weight"][0, :d]).unsqueeze(-1)
        products = items[:, :d].contiguous()
        scores = items.new_empty(chosen.shape)
        step = max(1, self.samples_at_once(items.device) // max(1, chosen.shape[1]))
        for start in range(0, len(users), step):
            part = slice(start, start + step)
            hidden = embedding(chosen[part], item_half).add_(user_half[part].unsqueeze(1)).relu_()
            product = torch.bmm(embedding(chosen[part], products), queries[part]).squeeze(-1)
            torch.add(product, self._upper_layers(hidden, network), out=scores[part])
        return scores

    def catalogue(self, items: Tensor, network: State, users: Tensor) -> Tensor:
        """See `Scorer.catalogue`. Works in slices of users and items that fit in cache."""
        if ITEM_HALF in network:
            return self._prepared_catalogue(network, users)
        d, (item_half, user_half) = self.product_size, self._first_layer(items, network, users)
        scores = (users[:, :d] * network["output.weight"][0, :d]) @ items[:, :d].T
        step = max(1, self.samples_at_once(items.device) // SLICE_USERS)
        for first in range(0, len(users), SLICE_USERS):
            part = slice(first, first + SLICE_USERS)
            for start in range(0, len(items), step):
                hidden = (item_half[start : start + step] + user_half[part].unsqueeze(1)).relu_()
                scores[part, start : start + step] += self._upper_layers(hidden, network)
        return scores

    def prepared(self, items: Tensor, network: State) -> State:
        """Half of the work for one user's catalogue, lying as the rest is done fastest."""
        d, weight = self.product_size, network["tower.0.weight"][:, self.tower_size :]
        half = torch.addmm(network["tower.0.bias"].unsqueeze(1), weight, items[:, d:].T)
        padded = pad(half, (0, -len(items) % COLUMNS))
        return {
            ITEM_HALF: padded.view(len(half), -1, COLUMNS).transpose(0, 1).contiguous(),
            WEIGHTED: network["output.weight"][0, :d].unsqueeze(1) * items[:, :d].T,
        }

    def _prepared_catalogue(self, network: State, users: Tensor) -> Tensor:
        """`catalogue` for a user or two: matrices with an item in each column."""
        d, item_half = self.product_size, network[ITEM_HALF]
        user_half = network["tower.0.weight"][:, : self.tower_size] @ users[:, d:].T
        last = network["output.weight"][0, d:]
        upper = [
            (network[f"{name}.bias"].unsqueeze(1), network[f"{name}.weight"]) for name in LAYERS[1:]
        ]
        scores = users[:, :d] @ network[WEIGHTED] + network["output.bias"]
        for user in range(len(users)):
            parts = []
            for part in item_half:
                hidden = (part + user_half[:, user : user + 1]).relu_()
                for bias, weight in upper:
                    hidden = torch.addmm(bias, weight, hidden).relu_()
                parts.append(last @ hidden)
            scores[user] += torch.cat(parts)[: scores.shape[1]]
        return scores

    def _first_layer(self, items: Tensor, network: State, users: Tensor) -> tuple[Tensor, Tensor]:
        """The first layer before ReLU is a sum of an item part (M, 4d) and a user part (B, 4d)."""
        weight, d, t = network["tower.0.weight"], self.product_size, self.tower_size
        item_half = torch.addmm(network["tower.0.bias"], items[:, d:], weight[:, t:].T)
        return item_half, users[:, d:] @ weight[:, :t].T

    def _upper_layers(self, hidden: Tensor, network: State) -> Tensor:
        """From the first hidden layer (..., 4d) to the tower's part of the logit (...)."""
        shape, hidden = hidden.shape[:-1], hidden.flatten(0, -2)
        for name in LAYERS[1:]:
            weight, bias = network[f"{name}.weight"], network[f"{name}.bias"]
            hidden = torch.addmm(bias, hidden, weight.T).relu_()
        weight = network["output.weight"][0, self.product_size :]
        return (hidden @ weight + network["output.bias"]).view(shape)
