"""Where the ascent point comes from, and what the server's optimiser sees."""

from typing import Any

import numpy as np
import pytest
import torch

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.hashing import user_keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.optimizers import SERVER_OPTIMIZERS
from fedrecgel.common.sharpness import ascend
from fedrecgel.common.state import State, Update

ITEMS = 300
SCORERS = ("dot", "neumf")


def made(scorer: str, engine: str = "block", **more: Any) -> Any:
    settings = {"embedding_dim": 4, "init_std": 0.1, "dtype": "float64", **more}
    return make_algorithm(
        make_config("fedrecgel", {"scorer": scorer, "engine": engine, **settings}), ITEMS
    )


def user_with_many_chunks() -> Interactions:
    """60 positives: with 4 negatives 300 samples, three chunks."""
    return Interactions(np.arange(60), np.array([0, 60]), user_keys(["reader"]), ITEMS)


@pytest.mark.parametrize("engine", ["block", "loop"])
@pytest.mark.parametrize("scorer", SCORERS)
def test_the_ascent_point_comes_from_all_chunks_together(scorer: str, engine: str) -> None:
    """U077: accumulated piece by piece at either point, the shared SAM gradient is the same."""
    rho, data = 0.3, user_with_many_chunks()
    algorithm = made(scorer, engine, rho_shared=rho, rho_private=0.0)
    shared = algorithm.init_server().shared
    private = algorithm.init_private(data.keys)
    update = algorithm.update_users(Download(shared), private, data, 1)[0][0]
    samples = algorithm._draw(data, 1)
    pieces = np.array_split(np.arange(len(samples.items)), 3)

    def accumulated(point: State) -> State:
        total = {name: torch.zeros_like(value) for name, value in point.items()}
        for piece in pieces:
            leaves = {name: value.clone().requires_grad_() for name, value in point.items()}
            rows = leaves["items"][torch.from_numpy(samples.items[piece])]
            logits = algorithm.scorer.score(rows, leaves, private["user"][0])
            weights = (torch.from_numpy(w[piece]) for w in (samples.positive, samples.total))
            positive, both = weights
            loss = (both * torch.nn.functional.softplus(logits) - positive * logits).sum()
            loss.backward()
            for name, leaf in leaves.items():
                total[name] += leaf.grad
        return total

    names = list(shared)
    plain = accumulated(shared)
    moved = ascend([shared[n] for n in names], [plain[n] for n in names], rho)
    expected = accumulated(dict(zip(names, moved, strict=True)))
    index, rows = update.rows["items"]
    assert torch.allclose(rows, expected["items"][index], atol=1e-12)
    assert not torch.allclose(rows, plain["items"][index], atol=1e-6)
    for name, value in update.dense.items():
        assert torch.allclose(value, expected[name], atol=1e-12)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_touched_rows_step_the_server_as_a_dense_gradient_does(name: str) -> None:
    """U079: an update holds touched rows only; every optimiser sees the whole table."""
    algorithm = made("dot", server_optimizer=name, server_lr=0.01)
    server, plain = algorithm.init_server(), algorithm.init_server()
    for round in range(1, 4):
        index = torch.tensor([round, 10 * round])
        rows = torch.arange(10, dtype=torch.float64).reshape(2, 5) - 4.5
        algorithm.aggregate(server, {-1: Update({"items": (index, rows)}, users=2)}, round)
        dense = torch.zeros_like(plain.shared["items"])
        dense[index] = rows / 2
        plain.shared["items"].grad = dense
        plain.optimizer.step()
        assert torch.equal(server.shared["items"], plain.shared["items"])
    assert not torch.equal(server.shared["items"], algorithm.init_server().shared["items"])
