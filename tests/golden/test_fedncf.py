"""FedNCF's server by hand: plain SGD, so that a mean over the users is told from a sum."""

from typing import Any

import numpy as np
import torch

from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.scorers.squares import GRAM
from fedrecgel.common.state import Update


def server_of(**settings: Any) -> tuple[Any, Any]:
    sgd = {"server_optimizer": "sgd", "server_lr": 0.5, "embedding_dim": 2, "dtype": "float64"}
    algorithm: Any = make_algorithm(make_config("fedncf", {**sgd, **settings}), 4)
    return algorithm, algorithm.init_server()


def test_the_server_steps_by_the_mean_over_the_users() -> None:
    """A gradient of 6 summed over three users moves a number by 0.5 * 6 / 3 = 1."""
    algorithm, server = server_of()
    before = {name: value.clone() for name, value in server.shared.items()}
    six = {name: torch.full_like(value, 6.0) for name, value in before.items()}
    rows = {"items": (torch.tensor([1]), six.pop("items")[:1])}
    algorithm.aggregate(server, {-1: Update(rows, six, 3, 0.0, 3)}, 1)
    for name, value in before.items():
        moved = np.ones(value.shape)
        if name == "items":
            moved[[0, 2, 3]] = 0.0  # which nobody touched
        np.testing.assert_allclose(value - server.shared[name], moved, atol=1e-12)


def test_the_gradient_through_gram_is_a_mean_as_well() -> None:
    """gram = Q' Q, so Q gets Q (G + G'); three users' sum of 6 times the unit matrix is 4 Q."""
    algorithm, server = server_of(scorer="dot", loss="squares")
    items = server.shared["items"].copy_(torch.arange(12.0).view(4, 3) / 8)
    before = items.numpy().copy()
    rows = {"items": (torch.tensor([1]), torch.zeros(1, 3, dtype=torch.float64))}
    sent = Update(rows, {GRAM: 6.0 * torch.eye(2, dtype=torch.float64)}, 3, 0.0, 3)
    algorithm.aggregate(server, {-1: sent}, 1)
    after = before.copy()
    after[:, :2] -= 0.5 * 4 * before[:, :2]  # the last column is the bias, no part of gram
    np.testing.assert_allclose(server.shared["items"], after, atol=1e-12)
    np.testing.assert_allclose(server.shared[GRAM], after[:, :2].T @ after[:, :2], atol=1e-12)
