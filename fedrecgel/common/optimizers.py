"""Optimisers: Adam for what many users step at once, and torch's own on the server."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedrecgel.common.errors import ConfigError
from fedrecgel.common.state import State

BETAS = (0.9, 0.999)
EPSILON = 1e-8

SERVER_OPTIMIZERS = (
    "adam",
    "sgd",
    "adamw",
    "adagrad",
    "rmsprop",
    "adadelta",
    "adamax",
    "nadam",
    "radam",
)


def adam_state(values: Tensor) -> State:
    """Moments (U, P) and step counts (U,) of users that were never trained."""
    return {
        "adam_mean": torch.zeros_like(values),
        "adam_square": torch.zeros_like(values),
        "adam_step": torch.zeros(len(values), dtype=torch.int64, device=values.device),
    }


def adam_step(values: Tensor, gradient: Tensor, state: State, lr: float) -> tuple[Tensor, State]:
    """One step of Adam (Kingma, Ba, 2015) for each user, with that user's own moments and count.

    Parameters
    ----------
    values, gradient : (..., P)
    state
        As `adam_state` makes it; not changed.
    """
    step = state["adam_step"] + 1
    mean = torch.lerp(state["adam_mean"], gradient, 1.0 - BETAS[0])
    square = torch.lerp(state["adam_square"], gradient.square(), 1.0 - BETAS[1])
    count = step.to(values.dtype).unsqueeze(-1)
    unbiased = mean / (1.0 - BETAS[0] ** count)
    scale = (square / (1.0 - BETAS[1] ** count)).sqrt() + EPSILON
    state = {"adam_mean": mean, "adam_square": square, "adam_step": step}
    return values - lr * unbiased / scale, state


class LocalAdam:
    """torch's Adam over tensors (U, ...) of users side by side, from fresh moments.

    Parameters
    ----------
    tensors
        Contiguous; stepped in place. The first axis is the users'.
    """

    def __init__(self, tensors: Iterable[Tensor], lr: float) -> None:
        # A parameter for each user: torch passes over those without a gradient, count included.
        self._users = [tensor.unbind() for tensor in tensors]
        parameters = [own for users in self._users for own in users]
        self._adam = torch.optim.Adam(parameters, lr, BETAS, EPSILON, fused=True)

    def step(self, gradients: Iterable[Tensor], active: Tensor) -> None:
        """One step for the users who are ``active`` (U,), by gradients shaped like the tensors."""
        goes_on = active.tolist()
        for users, gradient in zip(self._users, gradients, strict=True):
            # The fused step takes memory as it lies: autograd's gradient of W.T is transposed.
            values = gradient.contiguous().unbind()
            for own, value, goes in zip(users, values, goes_on, strict=True):
                own.grad = value if goes else None
        self._adam.step()


def server_optimizer(name: str, parameters: Iterable[Tensor], lr: float) -> torch.optim.Optimizer:
    """A torch optimiser by name, other than its learning rate at torch's defaults."""
    classes = {
        cls.lower(): getattr(torch.optim, cls) for cls in dir(torch.optim) if cls[0].isupper()
    }
    if name not in SERVER_OPTIMIZERS:
        raise ConfigError(
            f"setting 'server-optimizer' cannot be '{name}'; "
            f"choose from {', '.join(SERVER_OPTIMIZERS)}"
        )
    optimizer: torch.optim.Optimizer = classes[name](list(parameters), lr=lr)
    return optimizer
