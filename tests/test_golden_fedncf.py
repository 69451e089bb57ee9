"""FedNCF as in its paper against plain numpy: sample by sample, no autograd, no torch.

Two users over four items. The first has nine samples, so two minibatches of at most five in each
of two epochs, and touches every item; the other has three samples, one minibatch, and leaves an
item out. What is trained side by side in the package is one user after the other here.
"""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.hashing import mix, user_keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.samples import draw_negatives

Array = NDArray[np.float64]
Model = dict[str, Array]
Batch = list[tuple[int, float]]

TRAIN = [[0, 1, 1], [2]]
KEYS = user_keys(["a", "b"])
ITEMS, DIM, SEED, LR, BATCH, EPOCHS = 4, 2, 7, 0.05, 5, 2


def data() -> Interactions:
    items = np.array([item for row in TRAIN for item in row])
    return Interactions(items, np.array([0, 3, 4]), KEYS, ITEMS)


def samples_of(user: int, round: int) -> Batch:
    drawn = draw_negatives(data().take(np.array([user])), 2, SEED, round).tolist()
    pairs = zip(TRAIN[user], drawn, strict=True)
    return [pair for item, no in pairs for pair in [(item, 1.0), *((other, 0.0) for other in no)]]


def batches(user: int, round: int) -> list[Batch]:
    """Minibatches of all epochs in the order that the hashes give."""
    samples, found = samples_of(user, round), []
    for epoch in range(EPOCHS):
        place = np.arange(len(samples))
        keys = mix("minibatches", SEED, round, epoch, KEYS[user : user + 1], place)
        shuffled = [samples[i] for i in np.argsort(keys >> np.uint64(24), kind="stable")]
        found += [shuffled[i : i + BATCH] for i in range(0, len(shuffled), BATCH)]
    return found


def backprop(model: Model, batch: Batch) -> tuple[float, Model]:
    """Mean loss of a minibatch, and its gradient by everything; NeuMF, layer by layer."""
    found = {name: np.zeros_like(value) for name, value in model.items()}
    user, out, loss = model["user"], model["output.weight"][0], 0.0
    for item, label in batch:
        row = model["items"][item]
        layers = [np.concatenate([user[DIM:], row[DIM:]])]
        for i in range(3):
            value = model[f"tower.{i}.weight"] @ layers[-1] + model[f"tower.{i}.bias"]
            layers.append(np.maximum(value, 0.0))
        top = np.concatenate([user[:DIM] * row[:DIM], layers[-1]])
        logit = float(out @ top + model["output.bias"][0])
        loss += (np.log1p(np.exp(logit)) - label * logit) / len(batch)

        slope = (1 / (1 + np.exp(-logit)) - label) / len(batch)
        found["output.bias"][0] += slope
        found["output.weight"][0] += slope * top
        found["items"][item, :DIM] += slope * out[:DIM] * user[:DIM]
        found["user"][:DIM] += slope * out[:DIM] * row[:DIM]
        back = slope * out[DIM:]
        for i in (2, 1, 0):
            back = back * (layers[i + 1] > 0)
            found[f"tower.{i}.weight"] += np.outer(back, layers[i])
            found[f"tower.{i}.bias"] += back
            back = model[f"tower.{i}.weight"].T @ back
        found["user"][DIM:] += back[: 4 * DIM]
        found["items"][item, DIM:] += back[4 * DIM :]
    return loss, found


def trained(model: Model, user: int, round: int) -> tuple[float, Model]:
    """Adam from fresh moments over a user's minibatches: mean loss before the steps, the model."""
    mean = {name: np.zeros_like(value) for name, value in model.items()}
    square = {name: np.zeros_like(value) for name, value in model.items()}
    losses = []
    for step, batch in enumerate(batches(user, round), start=1):
        loss, gradient = backprop(model, batch)
        losses.append(loss)
        for name, g in gradient.items():
            mean[name] = 0.9 * mean[name] + 0.1 * g
            square[name] = 0.999 * square[name] + 0.001 * g * g
            spread = np.sqrt(square[name] / (1 - 0.999**step)) + 1e-8
            change = LR * mean[name] / (1 - 0.9**step) / spread
            model = {**model, name: model[name] - change}
    return float(np.mean(losses)), model


def numbers(*shape: int, step: int) -> Array:
    """Every ``step``-th of 0..40 (41 is prime), centred: a fixed table without a generator."""
    count = int(np.prod(shape))
    return (0.8 * ((np.arange(1, count + 1) * step) % 41 - 20.0) / 20.0).reshape(shape)


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("row_average", [True, False])
def test_two_rounds_are_the_calculation_by_hand(row_average: bool) -> None:
    settings = {
        "sends": "change",
        "embedding_dim": DIM,
        "dtype": "float64",
        "num_negatives": 2,
        "seed": SEED,
        "local_lr": LR,
        "batch_size": BATCH,
        "local_epochs": EPOCHS,
        "row_average": row_average,
    }
    algorithm: Any = make_algorithm(make_config("fedncf", settings), ITEMS)
    server = algorithm.init_server()
    shared = {
        name: numbers(*server.shared[name].shape, step=3 + 2 * place)
        for place, name in enumerate(["items", *algorithm.network])
    }
    for name, value in shared.items():
        server.shared[name].copy_(torch.from_numpy(value))
    users = [numbers(5 * DIM, step=3), numbers(5 * DIM, step=11)]
    private = {"user": torch.from_numpy(np.stack(users))}
    counts = np.zeros(ITEMS)
    for round in (1, 2):
        before = {"user": np.stack(users), **shared}
        download = Download(server.shared)
        update, state = algorithm.block_update(download, private, data(), round)
        results = [trained({**shared, "user": users[u]}, u, round) for u in range(2)]
        touched = np.array(
            [[i in {item for item, _ in samples_of(u, round)} for i in range(4)] for u in range(2)]
        )
        assert touched.sum(0).tolist().count(1) == 1  # the other three are touched by both

        assert update.touched == touched.sum() == 7
        assert_same(update.loss, sum(loss for loss, _ in results))
        change = {
            name: sum(model[name] - value for _, model in results) for name, value in shared.items()
        }
        assert_same(update.rows["items"][1], change["items"])
        for name in algorithm.network:
            assert_same(update.dense[name], change[name])
        for user in range(2):
            own = {"user": private["user"][user]}
            one = data().take(np.array([user]))
            _, alone = algorithm.local_update(server.shared, own, one, round)
            assert_same(alone["user"], results[user][1]["user"])
        users = [model["user"] for _, model in results]
        private = state
        assert_same(private["user"], np.stack(users))

        algorithm.aggregate(server, {-1: update}, round)
        share = touched.sum(0)[:, None] if row_average else 2
        shared = {
            name: value + change[name] / (share if name == "items" else 2)
            for name, value in shared.items()
        }
        for name, value in shared.items():
            assert_same(server.shared[name], value)
        counts += touched.sum(0)
        if row_average:
            assert_same(server.shared["touched"][:, 0], counts)
        else:
            assert "touched" not in server.shared
        moved = {"user": np.stack(users), **shared}
        still = [n for n, v in before.items() if np.abs(moved[n] - v).max() < 0.01]
        assert not still
