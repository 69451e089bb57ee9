"""Loss squares against the dense objective that it stands for, by autograd over the whole table."""

import numpy as np
import pytest
import torch
from torch import Tensor

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.fit import fit_private
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.hashing import user_keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.state import Update

TRAIN = [[0, 1, 1, 5], [2], [0, 2, 3, 4, 6]]  # the first user has an item twice: it counts once
ITEMS, DIM, WEIGHT = 7, 3, 0.25
SETTINGS = {
    "scorer": "dot",
    "embedding-dim": DIM,
    "init-std": 0.5,
    "loss": "squares",
    "unknown-weight": WEIGHT,
    "private-weight-decay": 0.7,
    "dtype": "float64",
    "server-optimizer": "sgd",
    "server-lr": 0.3,
}


@pytest.fixture
def data() -> Interactions:
    counts = [len(row) for row in TRAIN]
    keys = user_keys(["a", "b", "c"])
    return Interactions(np.concatenate(TRAIN), np.cumsum([0, *counts]), keys, ITEMS)


def make(**more: object):
    return make_algorithm(make_config("fedrecgel", {**SETTINGS, **more}), ITEMS)


def dense_loss(vectors: Tensor, user: Tensor, own: list[int]) -> Tensor:
    """The loss as it is defined, item by item."""
    wanted, weight = torch.zeros(ITEMS, dtype=torch.float64), torch.full((ITEMS,), WEIGHT)
    wanted[own], weight[own] = 1.0, 1.0
    return 0.5 * (weight.double() * (vectors @ user - wanted) ** 2).sum()


def dense_sam(items: Tensor, user: Tensor, own: list[int], rho: float) -> Tensor:
    """Gradient by all item vectors at their SAM point."""
    vectors = items[:, :-1].clone().requires_grad_()
    (gradient,) = torch.autograd.grad(dense_loss(vectors, user, own), vectors)
    moved = (vectors + rho * gradient / gradient.norm()).detach().requires_grad_()
    return torch.autograd.grad(dense_loss(moved, user, own), moved)[0]


def spread(update: Update, items: Tensor) -> Tensor:
    """The update by all item vectors, by the chain rule written out."""
    index, rows = update.rows["items"]
    found = torch.zeros_like(items)
    found[index] = rows
    assert (found[:, -1] == 0).all(), "the bias takes no part"
    by_gram = update.dense["gram"]
    return found[:, :-1] + items[:, :-1] @ by_gram + items[:, :-1] @ by_gram.T


@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_the_shared_gradient_is_that_of_the_whole_catalogue(data: Interactions, rho: float) -> None:
    algorithm = make(**{"rho-shared": rho, "rho-private": 0.0})
    shared, private = algorithm.init_server().shared, algorithm.init_private(data.keys)
    update, _ = algorithm.block_update(Download(shared), private, data, 1)
    wanted = sum(
        dense_sam(shared["items"], user, sorted(set(own)), rho)
        for user, own in zip(private["user"], TRAIN, strict=True)
    )
    torch.testing.assert_close(spread(update, shared["items"]), wanted, rtol=0, atol=1e-12)
    losses = [
        dense_loss(shared["items"][:, :-1], user, sorted(set(own)))
        for user, own in zip(private["user"], TRAIN, strict=True)
    ]
    assert update.loss == pytest.approx(float(sum(losses)), abs=1e-12)
    assert update.touched == 3 + 1 + 5


def test_the_private_step_is_adam_on_the_sam_gradient(data: Interactions) -> None:
    algorithm = make(**{"rho-private": 0.4, "local-lr": 0.1})
    shared, private = algorithm.init_server().shared, algorithm.init_private(data.keys)
    _, state = algorithm.block_update(Download(shared), private, data, 1)
    for place, own in enumerate(TRAIN):
        user = private["user"][place].clone().requires_grad_()
        vectors, own = shared["items"][:, :-1], sorted(set(own))
        (gradient,) = torch.autograd.grad(dense_loss(vectors, user, own), user)
        moved = (user + 0.4 * gradient / gradient.norm()).detach().requires_grad_()
        (gradient,) = torch.autograd.grad(dense_loss(vectors, moved, own), moved)
        gradient = gradient + 0.7 * user
        # The first step of Adam is the sign of the gradient, but for its epsilon.
        wanted = user - 0.1 * gradient / (gradient.abs() + 1e-8)
        torch.testing.assert_close(state["user"][place], wanted.detach(), rtol=0, atol=1e-12)


def test_newton_ends_where_the_private_gradient_is_zero(data: Interactions) -> None:
    algorithm = make(**{"private-optimizer": "newton", "rho-private": 0.0})
    shared, private = algorithm.init_server().shared, algorithm.init_private(data.keys)
    _, state = algorithm.block_update(Download(shared), private, data, 1)
    for place, own in enumerate(TRAIN):
        user = state["user"][place].clone().requires_grad_()
        loss = dense_loss(shared["items"][:, :-1], user, sorted(set(own)))
        loss = loss + 0.5 * 0.7 * (user**2).sum()
        (gradient,) = torch.autograd.grad(loss, user)
        assert gradient.abs().max() < 1e-12
    again, _ = algorithm.block_update(Download(shared), state, data, 2)
    first, _ = algorithm.block_update(Download(shared), private, data, 1)
    torch.testing.assert_close(again.dense["gram"], first.dense["gram"])  # wherever one begins


def test_with_newton_a_fit_is_one_round_and_as_good_as_fifty(data: Interactions) -> None:
    algorithm = make(**{"private-optimizer": "newton", "rho-private": 0.0})
    download = Download(algorithm.init_server().shared)
    rounds: list[int] = []
    found = fit_private(algorithm, download, data, between=lambda: rounds.append(1))
    assert len(rounds) == 1
    many = algorithm.init_private(data.keys)
    for round in range(1, 51):
        _, many = algorithm.update_users(download, many, data, round)
    torch.testing.assert_close(found["user"], many["user"], rtol=0, atol=1e-12)


def test_with_adam_a_fit_is_fifty_rounds(data: Interactions) -> None:
    algorithm, rounds = make(), list[int]()
    download = Download(algorithm.init_server().shared)
    fit_private(algorithm, download, data, between=lambda: rounds.append(1))
    assert len(rounds) == 50


def test_the_server_steps_all_items_and_gram_follows_them(data: Interactions) -> None:
    algorithm = make(**{"item-weight-decay": 0.1})
    server, private = algorithm.init_server(), algorithm.init_private(data.keys)
    before = server.shared["items"].clone()
    update, _ = algorithm.block_update(Download(server.shared), private, data, 1)
    algorithm.aggregate(server, {-1: update}, 1)
    step = spread(update, before) / 3 + 0.1 * before[:, :-1]  # every item is somebody's
    torch.testing.assert_close(server.shared["items"][:, :-1], before[:, :-1] - 0.3 * step)
    vectors = server.shared["items"][:, :-1]
    torch.testing.assert_close(server.shared["gram"], vectors.T @ vectors)


def test_weights_for_flowers_own_strategies_say_the_same(data: Interactions) -> None:
    algorithm = make()
    server, private = algorithm.init_server(), algorithm.init_private(data.keys)
    shared = {**server.shared, "gram": torch.zeros(DIM, DIM, dtype=torch.float64)}
    shared = algorithm.complete(shared)
    assert torch.equal(shared["gram"], server.shared["gram"])
    update, _ = algorithm.block_update(Download(shared), private, data, 1)
    plain = algorithm.as_weights(update, shared)
    index, rows = plain.rows["items"]
    assert index.tolist() == list(range(ITEMS))
    assert plain.dense == {}
    torch.testing.assert_close(rows[:, :-1], spread(update, shared["items"]))


def test_an_average_begins_with_the_first_round_and_is_what_is_scored(data: Interactions) -> None:
    algorithm = make(average=0.75)
    server, private = algorithm.init_server(), algorithm.init_private(data.keys)
    tables = []
    for round in (1, 2, 3):
        update, private = algorithm.block_update(Download(server.shared), private, data, round)
        algorithm.aggregate(server, {-1: update}, round)
        tables.append(server.shared["items"].clone())
    wanted = 0.75 * (0.75 * tables[0] + 0.25 * tables[1]) + 0.25 * tables[2]
    scored = algorithm.scored(server)
    torch.testing.assert_close(scored["items"], wanted)
    torch.testing.assert_close(scored["gram"], wanted[:, :-1].T @ wanted[:, :-1])
    kept = algorithm.snapshot(server)
    assert torch.equal(kept.shared["items"], scored["items"])
    assert torch.equal(algorithm.scored(kept)["items"], scored["items"])


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"scorer": "neumf"}, "loss squares needs scorer dot, not neumf"),
        (
            {"loss": "mean", "private-optimizer": "newton"},
            "private-optimizer newton needs loss squares, not mean",
        ),
        (
            {"private-optimizer": "newton", "private-weight-decay": 0.0},
            "private-optimizer newton needs a private-weight-decay above 0",
        ),
        ({"private-optimizer": "newton"}, "has no direction; set rho-private=0"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict, line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        make(**settings)
