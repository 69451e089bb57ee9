"""NeuMF's gradients for a block of users at once, each user with a perturbation of their own.

Written out by hand instead of by autograd, so that the work is what the mathematics needs:

- The first layer acts on ``[user | item]``. Its user half is one vector per user, added to the item
  half of every sample, and so are the gradients that belong to it.
- At the unperturbed network all users share the weights: one matrix product over all samples.
- A shared perturbation gives user ``u`` the weights ``W + c_u G_u`` with ``G_u = D_u^T X_u``:
  gradient by the layer's output times the layer's input, summed over the user's samples. ``G_u`` is
  formed, by batched products: the low-rank ``X W^T + c (X X_u^T) D_u`` costs more from about 20 samples on.
- The private pass moves the user vectors alone. It reuses the item half of the first layer and
  needs no weight gradients.

Padding has weight 0 in the loss, hence a residual of 0, and adds nothing anywhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecgel.common.scorers.base import Block, Gradients
from fedrecgel.common.sharpness import ascent_scale
from fedrecgel.common.state import State


@dataclass(frozen=True)
class _Weights:
    """What a pass multiplies by: shared by the block, or with a leading axis over its users.

    Attributes
    ----------
    item : (4d, 4d) or (U, 4d, 4d)
        Item half of the first layer's weight.
    upper : pairs of (out, in) or (U, out, in) and (out,) or (U, 1, out)
        Weight and bias of the layers above.
    product, tower : (d,) or (U, 1, d)
        The two halves of the output layer.
    bias : (1,) or (U, 1)
        That of the output layer.
    """

    item: Tensor
    upper: tuple[tuple[Tensor, Tensor], ...]
    product: Tensor
    tower: Tensor
    bias: Tensor


@dataclass(frozen=True)
class _Trace:
    """A forward and backward pass through the tower.

    Attributes
    ----------
    hidden, deltas : three of (U, S, width)
        Output of each layer, and gradient by its value before ReLU.
    logits, residual : (U, S)
    """

    hidden: list[Tensor]
    deltas: list[Tensor]
    logits: Tensor
    residual: Tensor


class NeuMFKernel:
    """Block computation of `fedrecgel.common.scorers.neumf.NeuMFScorer`, see `Kernel`."""

    def __init__(self, network: State, product_size: int) -> None:
        self._d = product_size
        first, output = network["tower.0.weight"], network["output.weight"][0]
        half = first.shape[1] // 2
        self._user_weight, self._first_bias = first[:, :half], network["tower.0.bias"]
        self._weights = _Weights(
            item=first[:, half:].contiguous(),
            upper=tuple((network[f"{n}.weight"], network[f"{n}.bias"]) for n in _UPPER),
            product=output[:product_size],
            tower=output[product_size:],
            bias=network["output.bias"],
        )

    @torch.no_grad()
    def private_gradient(self, block: Block, rows: Tensor, users: Tensor) -> Tensor:
        """See `Kernel.private_gradient`."""
        return self._by_user(self._trace(block, self._item_half(rows), rows, users), rows)

    @torch.no_grad()
    def sam_gradients(
        self, block: Block, rows: Tensor, users: Tensor, rho_shared: float, rho_private: float
    ) -> Gradients:
        """See `Kernel.sam_gradients`."""
        item_half = self._item_half(rows)
        plain = self._trace(block, item_half.clone(), rows, users)
        user_gradient = self._by_user(plain, rows)

        if rho_shared > 0:
            row_gradient, network = self._perturbed(block, plain, rows, users, rho_shared)
        else:
            row_gradient, network = self._unperturbed(plain, rows, users)

        if rho_private > 0:
            scale = ascent_scale(user_gradient.square().sum(-1, keepdim=True), rho_private)
            moved = self._trace(block, item_half, rows, users + scale * user_gradient)
            user_gradient = self._by_user(moved, rows)
        return Gradients(row_gradient, network, user_gradient, block.losses(plain.logits))

    def _item_half(self, rows: Tensor) -> Tensor:
        return rows[..., self._d :] @ self._weights.item.T

    def _user_half(self, users: Tensor) -> Tensor:
        """(U, 1, 4d) user's part of the first layer, with its bias."""
        tower = users[:, self._d :]
        return torch.addmm(self._first_bias, tower, self._user_weight.T).unsqueeze(1)

    def _trace(self, block: Block, item_half: Tensor, rows: Tensor, users: Tensor) -> _Trace:
        """Pass at the given rows and network; overwrites ``item_half``."""
        scaled = (users[:, : self._d] * self._weights.product).unsqueeze(1)
        product = (rows[..., : self._d] * scaled).sum(-1)
        return _trace(self._weights, block, item_half.add_(self._user_half(users)), product)

    def _by_user(self, trace: _Trace, rows: Tensor) -> Tensor:
        """(U, P) gradient by the users' vectors at the given rows and network."""
        product = (trace.residual.unsqueeze(1) @ rows[..., : self._d]).squeeze(1)
        tower = trace.deltas[0].sum(1) @ self._user_weight
        return torch.cat((product * self._weights.product, tower), -1)

    def _unperturbed(self, plain: _Trace, rows: Tensor, users: Tensor) -> tuple[Tensor, State]:
        """Plain gradients by the rows, and by the network summed over the users."""
        d, weights = self._d, self._weights
        product = (plain.residual.unsqueeze(1) @ rows[..., :d]).squeeze(1)
        network = _summed(plain, rows[..., d:], users, product)
        return _row_gradient(plain, weights, users, rows), network

    def _perturbed(
        self, block: Block, plain: _Trace, rows: Tensor, users: Tensor, rho: float
    ) -> tuple[Tensor, State]:
        """Gradients by rows and network after each user's own ascent step on both."""
        d, weights = self._d, self._weights
        user_product, user_tower, residual = users[:, :d], users[:, d:], plain.residual
        inputs = (rows[..., d:], *plain.hidden)

        # Gradients of each user. That of row i is [r_i * scaled | tower_i]; that by the first
        # layer's user half is (sum of deltas) x (user vector), the bias being one more entry of 1.
        scaled = user_product * weights.product
        tower = plain.deltas[0] @ weights.item
        matrices = [x.mT @ y for x, y in zip(plain.deltas, inputs, strict=False)]
        sums = [x.sum(1) for x in plain.deltas]
        product_sum = (residual.unsqueeze(1) @ rows[..., :d]).squeeze(1)
        output_product = user_product * product_sum
        output_tower = (residual.unsqueeze(1) @ plain.hidden[-1]).squeeze(1)
        output_bias = residual.sum(1, keepdim=True)

        length = user_tower.square().sum(-1) + 1.0
        residual_square = residual.square().sum(-1)
        squared = residual_square * scaled.square().sum(-1) + sums[0].square().sum(-1) * length
        for part in (tower, *matrices):
            squared += torch.linalg.vector_norm(part, dim=(1, 2)).square()
        for part in (*sums[1:], output_product, output_tower, output_bias):
            squared += part.square().sum(-1)
        scale = ascent_scale(squared, rho).unsqueeze(-1)
        scale_matrix = scale.unsqueeze(-1)

        # The ascent step.
        items = torch.addcmul(rows[..., d:], tower, scale_matrix, out=tower)
        moved = _Weights(
            item=_move(weights.item, matrices[0], scale_matrix),
            upper=tuple(
                (_move(weight, g, scale_matrix), _move(bias, s, scale).unsqueeze(1))
                for (weight, bias), g, s in zip(weights.upper, matrices[1:], sums[1:], strict=True)
            ),
            product=_move(weights.product, output_product, scale).unsqueeze(1),
            tower=_move(weights.tower, output_tower, scale).unsqueeze(1),
            bias=_move(weights.bias, output_bias, scale),
        )

        # The pass there. With rows_i + c r_i scaled, product parts only need sums over the samples.
        user_half = self._user_half(users) + (scale * length.unsqueeze(-1) * sums[0]).unsqueeze(1)
        query = user_product.unsqueeze(1) * moved.product
        product = (rows[..., :d] * query).sum(-1)
        shift = scale * (scaled * query.squeeze(1)).sum(-1, keepdim=True)
        product += shift * residual
        first = torch.baddbmm(user_half, items, moved.item.mT)
        trace = _trace(moved, block, first, product)

        product_sum = (trace.residual.unsqueeze(1) @ rows[..., :d]).squeeze(1)
        overlap = (trace.residual * residual).sum(-1, keepdim=True)
        product_sum += scale * overlap * scaled
        network = _summed(trace, items, users, product_sum)
        return _row_gradient(trace, moved, users, rows), network


_UPPER = ("tower.1", "tower.2")


def _move(value: Tensor, gradient: Tensor, scale: Tensor) -> Tensor:
    """``value + scale * gradient``, in the memory of ``gradient``."""
    return torch.addcmul(value, gradient, scale, out=gradient)


def _trace(weights: _Weights, block: Block, first: Tensor, product: Tensor) -> _Trace:
    """Forward and backward through the tower.

    Parameters
    ----------
    first : (U, S, 4d)
        First layer before ReLU; overwritten.
    product : (U, S)
        Product part of the logits; overwritten.
    """
    hidden = [first.relu_()]
    for weight, bias in weights.upper:
        hidden.append(_linear(hidden[-1], weight, bias).relu_())
    if weights.tower.dim() == 1:
        product += hidden[-1] @ weights.tower
    else:
        product += (hidden[-1] * weights.tower).sum(-1)
    logits = product.add_(weights.bias)
    residual = block.residual(logits)
    deltas = [_where_active(residual.unsqueeze(-1) * weights.tower, hidden[-1])]
    for (weight, _), below in zip(weights.upper[::-1], hidden[-2::-1], strict=True):
        deltas.insert(0, _where_active(deltas[0] @ weight, below))
    return _Trace(hidden, deltas, logits, residual)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 3:
        return torch.baddbmm(bias, inputs, weight.mT)
    flat = torch.addmm(bias, inputs.flatten(0, 1), weight.T)
    return flat.view(*inputs.shape[:2], -1)


def _where_active(gradient: Tensor, activation: Tensor) -> Tensor:
    """Backward through ReLU, in place: 0 where the activation is 0."""
    result: Tensor = torch.ops.aten.threshold_backward.grad_input(
        gradient, activation, 0.0, grad_input=gradient
    )
    return result


def _row_gradient(trace: _Trace, weights: _Weights, users: Tensor, rows: Tensor) -> Tensor:
    """(U, S, D) gradient by the item rows; ``rows`` gives the shape."""
    result = torch.empty_like(rows)
    d = weights.product.shape[-1]
    query = users[:, :d].unsqueeze(1) * weights.product
    torch.mul(trace.residual.unsqueeze(-1), query, out=result[..., :d])
    result[..., d:] = trace.deltas[0] @ weights.item
    return result


def _summed(trace: _Trace, items: Tensor, users: Tensor, product_sum: Tensor) -> State:
    """Gradient by the network, summed over the users.

    Parameters
    ----------
    items : (U, S, 4d)
        Input of the first layer's item half.
    product_sum : (U, d)
        Sum over each user's samples of residual x product part of the row.
    """
    d = product_sum.shape[1]
    deltas = [delta.flatten(0, 1) for delta in trace.deltas]
    hidden = [value.flatten(0, 1) for value in trace.hidden]
    first = trace.deltas[0].sum(1)
    residual = trace.residual.flatten()
    output = torch.cat(((users[:, :d] * product_sum).sum(0), residual @ hidden[-1]))
    network = {
        "tower.0.weight": torch.cat((first.T @ users[:, d:], deltas[0].T @ items.flatten(0, 1)), 1),
        "tower.0.bias": first.sum(0),
        "output.weight": output.unsqueeze(0),
        "output.bias": residual.sum().unsqueeze(0),
    }
    for name, delta, below in zip(_UPPER, deltas[1:], hidden, strict=False):
        network[f"{name}.weight"] = delta.T @ below
        network[f"{name}.bias"] = delta.sum(0)
    return network
