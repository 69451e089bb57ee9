"""NeuMF's gradients for a block of users at once, each user with a perturbation of their own.

Written out by hand instead of by autograd, so that the work is what the mathematics needs:

- The first layer acts on ``[user | item]``. Its user half is one vector per user, added to the item
  half of every sample; its gradient is (sum of the samples' deltas) x (user vector).
- At the unperturbed network all users share the weights: one matrix product over all samples.
- A shared perturbation gives user ``u`` the weights ``W + c_u G_u`` with ``G_u = D_u^T X_u``:
  deltas times inputs of the layer, summed over the user's samples. ``G_u`` is formed, by batched
  products; the low-rank ``X W^T + c (X X_u^T) D_u`` needs fewer operations below 20 samples only.
- The private pass moves the user vectors alone. It reuses the item half of the first layer and
  needs no weight gradients.

"Delta" is the gradient of the loss by a layer's value before ReLU. Padding has weight 0 in the
loss, so its residual and deltas are 0 and it adds nothing anywhere.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedrecgel.common.scorers.base import Block, Gradients
from fedrecgel.common.sharpness import ascent_scale
from fedrecgel.common.state import State

UPPER = ("tower.1", "tower.2")


@dataclass(frozen=True)
class _Weights:
    """What a pass multiplies by: shared by the block, or with a leading axis over its users.

    The user half of the first layer is missing: it enters as a vector per user.

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
    """A forward and backward pass.

    Attributes
    ----------
    hidden, deltas : three of (U, S, width)
        Output of each layer of the tower after ReLU, and its delta.
    logits, residual : (U, S)
    delta_sum : (U, 4d)
        First layer's deltas, summed over the samples.
    product_sum : (U, d)
        Residual x product part of the row, summed over the samples.
    """

    hidden: list[Tensor]
    deltas: list[Tensor]
    logits: Tensor
    residual: Tensor
    delta_sum: Tensor
    product_sum: Tensor


class NeuMFKernel:
    """Block computation of `fedrecgel.common.scorers.neumf.NeuMFScorer`; see `Kernel`."""

    def __init__(self, network: State, product_size: int) -> None:
        self._d = product_size
        first, output = network["tower.0.weight"], network["output.weight"][0]
        half = first.shape[1] // 2
        self._user_weight, self._first_bias = first[:, :half], network["tower.0.bias"]
        self._weights = _Weights(
            item=first[:, half:].contiguous(),
            upper=tuple((network[f"{n}.weight"], network[f"{n}.bias"]) for n in UPPER),
            product=output[:product_size],
            tower=output[product_size:],
            bias=network["output.bias"],
        )

    @torch.no_grad()
    def private_gradient(self, block: Block, rows: Tensor, users: Tensor) -> Tensor:
        """See `Kernel.private_gradient`."""
        first = self._item_half(rows).add_(self._user_half(users))
        return self._user_gradient(_trace(self._weights, block, rows, users, first))

    @torch.no_grad()
    def sam_gradients(
        self, block: Block, rows: Tensor, users: Tensor, rho_shared: float, rho_private: float
    ) -> Gradients:
        """See `Kernel.sam_gradients`."""
        weights, item_half, user_half = self._weights, self._item_half(rows), self._user_half(users)
        plain = _trace(weights, block, rows, users, item_half + user_half)

        user_gradient = self._user_gradient(plain)
        if rho_private > 0:
            scale = ascent_scale(user_gradient.square().sum(-1, keepdim=True), rho_private)
            moved = users + scale * user_gradient
            first = item_half.add_(self._user_half(moved))
            user_gradient = self._user_gradient(_trace(weights, block, rows, moved, first))

        losses, trace = block.losses(plain.logits), plain
        if rho_shared > 0:
            rows, weights, first_shift = _ascend(weights, plain, rows, users, rho_shared)
            first = torch.baddbmm(user_half + first_shift, rows[..., self._d :], weights.item.mT)
            trace = _trace(weights, block, rows, users, first)
        row_gradient = _row_gradient(weights, trace, users)
        return Gradients(row_gradient, _network_gradient(trace, rows, users), user_gradient, losses)

    def _item_half(self, rows: Tensor) -> Tensor:
        """(U, S, 4d) items' part of the first layer."""
        return rows[..., self._d :] @ self._weights.item.T

    def _user_half(self, users: Tensor) -> Tensor:
        """(U, 1, 4d) users' part of the first layer, with its bias."""
        tower = users[:, self._d :]
        return torch.addmm(self._first_bias, tower, self._user_weight.T).unsqueeze(1)

    def _user_gradient(self, trace: _Trace) -> Tensor:
        """(U, P) gradient by the users' vectors, from a pass at the unperturbed network."""
        product = trace.product_sum * self._weights.product
        return torch.cat((product, trace.delta_sum @ self._user_weight), -1)


def _trace(weights: _Weights, block: Block, rows: Tensor, users: Tensor, first: Tensor) -> _Trace:
    """Forward and backward pass. ``first`` is the first layer before ReLU; it is overwritten."""
    d = weights.product.shape[-1]
    hidden = [first.relu_()]
    for weight, bias in weights.upper:
        hidden.append(_linear(hidden[-1], weight, bias).relu_())

    # The product part of the logit is (row * user) . weight = row . (user * weight).
    query = users[:, :d].unsqueeze(1) * weights.product
    logits = (rows[..., :d] * query).sum(-1).add_(weights.bias)
    logits += (hidden[-1] * weights.tower).sum(-1)
    residual = block.residual(logits)

    deltas = [_through_relu(residual.unsqueeze(-1) * weights.tower, hidden[-1])]
    for (weight, _), below in zip(weights.upper[::-1], hidden[-2::-1], strict=True):
        deltas.insert(0, _through_relu(deltas[0] @ weight, below))
    product_sum = torch.bmm(residual.unsqueeze(1), rows[..., :d]).squeeze(1)
    return _Trace(hidden, deltas, logits, residual, deltas[0].sum(1), product_sum)


def _ascend(
    weights: _Weights, trace: _Trace, rows: Tensor, users: Tensor, rho: float
) -> tuple[Tensor, _Weights, Tensor]:
    """Rows and network after each user's own ascent step, one norm over both.

    Returns
    -------
    Rows, weights, and (U, 1, 4d) the change of the user half of the first layer.
    """
    d = trace.product_sum.shape[1]
    row_gradient = _row_gradient(weights, trace, users)
    inputs = (rows[..., d:], *trace.hidden[:-1])
    matrices = [torch.bmm(x.mT, y) for x, y in zip(trace.deltas, inputs, strict=True)]
    biases = [delta.sum(1) for delta in trace.deltas[1:]]
    product = users[:, :d] * trace.product_sum
    tower = torch.bmm(trace.residual.unsqueeze(1), trace.hidden[-1]).squeeze(1)
    bias = trace.residual.sum(1, keepdim=True)

    # The first layer's user half and bias have the gradient delta_sum x [user | 1]. Its norm, and
    # what a step along it adds to the layer's value, only need the squared length of [user | 1].
    length = users[:, d:].square().sum(-1, keepdim=True) + 1.0
    squared = trace.delta_sum.square().sum(-1, keepdim=True) * length
    for part in (row_gradient, *matrices, *biases, product, tower, bias):
        squared += torch.linalg.vector_norm(part.flatten(1), dim=1, keepdim=True).square()
    scale = ascent_scale(squared, rho)
    cube = scale.unsqueeze(-1)

    moved = _Weights(
        item=_step(weights.item, matrices[0], cube),
        upper=tuple(
            (_step(weight, matrix, cube), _step(bias, vector, scale).unsqueeze(1))
            for (weight, bias), matrix, vector in zip(
                weights.upper, matrices[1:], biases, strict=True
            )
        ),
        product=_step(weights.product, product, scale).unsqueeze(1),
        tower=_step(weights.tower, tower, scale).unsqueeze(1),
        bias=_step(weights.bias, bias, scale),
    )
    first_shift = (scale * length * trace.delta_sum).unsqueeze(1)
    return _step(rows, row_gradient, cube), moved, first_shift


def _step(value: Tensor, gradient: Tensor, scale: Tensor) -> Tensor:
    """``value + scale * gradient``, in the memory of ``gradient``."""
    return torch.addcmul(value, gradient, scale, out=gradient)


def _linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    if weight.dim() == 3:
        return torch.baddbmm(bias, inputs, weight.mT)
    flat = torch.addmm(bias, inputs.flatten(0, 1), weight.T)
    return flat.view(*inputs.shape[:2], -1)


def _through_relu(gradient: Tensor, activation: Tensor) -> Tensor:
    """Zero the gradient where ReLU was inactive, in place."""
    result: Tensor = torch.ops.aten.threshold_backward.grad_input(
        gradient, activation, 0.0, grad_input=gradient
    )
    return result


def _row_gradient(weights: _Weights, trace: _Trace, users: Tensor) -> Tensor:
    """(U, S, D) gradient by the item rows."""
    query = users[:, : weights.product.shape[-1]].unsqueeze(1) * weights.product
    return torch.cat((trace.residual.unsqueeze(-1) * query, trace.deltas[0] @ weights.item), -1)


def _network_gradient(trace: _Trace, rows: Tensor, users: Tensor) -> State:
    """Gradient by the network, summed over the users: products over all samples at once."""
    d = trace.product_sum.shape[1]
    deltas = [delta.flatten(0, 1) for delta in trace.deltas]
    inputs = [rows[..., d:].flatten(0, 1), *(value.flatten(0, 1) for value in trace.hidden)]
    product = (users[:, :d] * trace.product_sum).sum(0)
    tower = trace.residual.flatten() @ inputs.pop()
    network = {
        "tower.0.weight": torch.cat((trace.delta_sum.T @ users[:, d:], deltas[0].T @ inputs[0]), 1),
        "tower.0.bias": trace.delta_sum.sum(0),
        "output.weight": torch.cat((product, tower)).unsqueeze(0),
        "output.bias": trace.residual.sum().unsqueeze(0),
    }
    for name, delta, below in zip(UPPER, deltas[1:], inputs[1:], strict=True):
        network[f"{name}.weight"] = delta.T @ below
        network[f"{name}.bias"] = delta.sum(0)
    return network
