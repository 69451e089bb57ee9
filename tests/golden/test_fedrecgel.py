"""Two rounds of three users over four items against plain numpy: no autograd, no torch.

Each sample is a (item, label, weight) of its own here, and backpropagation is written out by hand,
sample by sample; the package merges samples and works on blocks. Every user has two distinct items
they never trained on, so with two negatives for each positive the draw leaves no choice.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.hashing import user_keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.state import Update

Array = NDArray[np.float64]
Shared = dict[str, Array]
Sample = tuple[int, float, float]
Backprop = Callable[[Shared, Array, list[Sample]], tuple[float, Shared, Array]]

TRAIN = [[0, 1, 1], [2, 1], [0, 2, 2]]  # the first and the last user have an item twice
UNSEEN = [[2, 3], [0, 3], [1, 3]]
ITEMS = 4
LR, SERVER_LR = 0.1, 0.01


# --- the calculation by hand ---------------------------------------------------------------------


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


def loss_of(logit: float, label: float) -> float:
    return math.log1p(math.exp(logit)) - label * logit


def dot_backprop(shared: Shared, user: Array, samples: list[Sample]) -> tuple[float, Shared, Array]:
    rows, by_rows, by_user, loss = shared["items"], np.zeros_like(shared["items"]), user * 0, 0.0
    for item, label, weight in samples:
        vector, bias = rows[item, :-1], rows[item, -1]
        logit = sum(user * vector) + bias
        loss += weight * loss_of(logit, label)
        slope = weight * (sigmoid(logit) - label)
        by_rows[item, :-1] += slope * user
        by_rows[item, -1] += slope
        by_user = by_user + slope * vector
    return loss, {"items": by_rows}, by_user


def neumf_backprop(
    shared: Shared, user: Array, samples: list[Sample]
) -> tuple[float, Shared, Array]:
    found = {name: np.zeros_like(value) for name, value in shared.items()}
    by_user, loss = np.zeros_like(user), 0.0
    d = len(user) // 5
    weights = [shared[f"tower.{i}.weight"] for i in range(3)]
    biases = [shared[f"tower.{i}.bias"] for i in range(3)]
    out, out_bias = shared["output.weight"][0], shared["output.bias"][0]
    for item, label, weight in samples:
        row = shared["items"][item]
        product = user[:d] * row[:d]
        layers = [np.concatenate([user[d:], row[d:]])]
        for w, b in zip(weights, biases, strict=True):
            layers.append(np.maximum(w @ layers[-1] + b, 0.0))
        logit = float(out[:d] @ product + out[d:] @ layers[-1] + out_bias)
        loss += weight * loss_of(logit, label)

        slope = weight * (sigmoid(logit) - label)
        found["output.bias"][0] += slope
        found["output.weight"][0, :d] += slope * product
        found["output.weight"][0, d:] += slope * layers[-1]
        found["items"][item, :d] += slope * out[:d] * user[:d]
        by_user[:d] += slope * out[:d] * row[:d]
        back = slope * out[d:]
        for i in (2, 1, 0):
            back = back * (layers[i + 1] > 0)
            found[f"tower.{i}.weight"] += np.outer(back, layers[i])
            found[f"tower.{i}.bias"] += back
            back = weights[i].T @ back
        by_user[d:] += back[: 4 * d]
        found["items"][item, d:] += back[4 * d :]
    return loss, found, by_user


def norm(arrays: list[Array]) -> float:
    return math.sqrt(sum(float((a * a).sum()) for a in arrays))


@dataclass
class Person:
    """A user's private side: vector, moments, number of steps."""

    vector: Array
    mean: Array
    square: Array
    steps: int = 0

    def adam(self, gradient: Array) -> None:
        self.steps += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient * gradient
        unbiased = self.mean / (1 - 0.9**self.steps)
        spread = np.sqrt(self.square / (1 - 0.999**self.steps))
        self.vector = self.vector - LR * unbiased / (spread + 1e-8)


@dataclass
class ByHand:
    """Settings of the calculation by hand."""

    backprop: Backprop
    rho_shared: float
    rho_private: float
    steps: int
    private_decay: float

    def private_gradient(self, shared: Shared, user: Array, samples: list[Sample]) -> Array:
        _, _, gradient = self.backprop(shared, user, samples)
        if self.rho_private > 0:
            moved = user + self.rho_private * gradient / norm([gradient])
            _, _, gradient = self.backprop(shared, moved, samples)
        return gradient

    def shared_gradient(self, shared: Shared, user: Array, samples: list[Sample]) -> Shared:
        _, gradient, _ = self.backprop(shared, user, samples)
        if self.rho_shared > 0:
            scale = self.rho_shared / norm(list(gradient.values()))
            moved = {name: value + scale * gradient[name] for name, value in shared.items()}
            _, gradient, _ = self.backprop(moved, user, samples)
        return gradient

    def local_round(
        self, shared: Shared, person: Person, samples: list[Sample]
    ) -> tuple[float, Shared]:
        """The client's round; steps the person's vector and returns what is sent."""
        for _ in range(self.steps - 1):
            self.step(shared, person, samples)
        loss = self.backprop(shared, person.vector, samples)[0]
        sent = self.shared_gradient(shared, person.vector, samples)
        self.step(shared, person, samples)
        return loss, sent

    def step(self, shared: Shared, person: Person, samples: list[Sample]) -> None:
        gradient = self.private_gradient(shared, person.vector, samples)
        person.adam(gradient + self.private_decay * person.vector)


# --- explicit numbers ----------------------------------------------------------------------------


def numbers(count: int, step: int, scale: float) -> Array:
    """Every ``step``-th of 0..40 (41 is prime), centred: a fixed table without a generator."""
    return scale * ((np.arange(1, count + 1) * step) % 41 - 20.0) / 20.0


def shared_numbers(algorithm: Algorithm[Any]) -> Shared:
    shapes = {"items": (ITEMS, algorithm.scorer.row_size), **algorithm.scorer.network_shapes}
    return {
        name: numbers(math.prod(shape), 7 + 2 * place, 0.8).reshape(shape)
        for place, (name, shape) in enumerate(shapes.items())
    }


def people(size: int) -> list[Person]:
    vectors = [numbers(size, step, 0.9) for step in (3, 5, 11)]
    return [Person(v, np.zeros(size), np.zeros(size)) for v in vectors]


def samples_of(user: int, negatives: int) -> list[Sample]:
    pairs = [(item, 1.0) for item in TRAIN[user]]
    if negatives:
        pairs += [(item, 0.0) for _ in TRAIN[user] for item in UNSEEN[user]]
    return [(item, label, 1.0 / len(pairs)) for item, label in pairs]


def interactions() -> Interactions:
    items = np.array([item for row in TRAIN for item in row])
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in TRAIN])])
    return Interactions(items, offsets, user_keys(["a", "b", "c"]), ITEMS)


CASES = {
    "plain": {},
    "both": {"rho_shared": 0.3, "rho_private": 0.2},
    "shared only": {"rho_shared": 0.3},
    "private only": {"rho_private": 0.2, "private_steps": 3},
    "three steps": {"rho_shared": 0.3, "rho_private": 0.2, "private_steps": 3},
    "mean": {"rho_shared": 0.3, "rho_private": 0.2, "loss": "mean"},
    "sgd": {"rho_shared": 0.3, "server_optimizer": "sgd"},  # Adam takes no notice of a factor
    "decay": {
        "rho_shared": 0.3,
        "rho_private": 0.2,
        "private_steps": 3,
        "private_weight_decay": 0.05,
        "item_weight_decay": 0.02,
    },
}


@dataclass
class Case:
    """One setting: the algorithm, and the same by hand."""

    algorithm: Algorithm[Any]
    hand: ByHand
    shared: Shared
    people: list[Person]
    negatives: int

    @property
    def private(self) -> dict[str, torch.Tensor]:
        return {
            "user": torch.from_numpy(np.stack([p.vector for p in self.people])),
            "adam_mean": torch.from_numpy(np.stack([p.mean for p in self.people])),
            "adam_square": torch.from_numpy(np.stack([p.square for p in self.people])),
            "adam_step": torch.tensor([p.steps for p in self.people]),
        }


@pytest.fixture(params=[(s, n, k) for s in ("dot", "neumf") for n in CASES for k in (0, 2)])
def case(request: pytest.FixtureRequest) -> Case:
    scorer, name, negatives = request.param
    radii = {"rho_shared": 0.0, "rho_private": 0.0}
    settings = {
        **radii,
        "scorer": scorer,
        "embedding_dim": 2,
        "dtype": "float64",
        "local_lr": LR,
        "server_lr": SERVER_LR,
        "num_negatives": negatives,
        **CASES[name],
    }
    config: Any = make_config("fedrecgel", settings)
    algorithm: Any = make_algorithm(config, ITEMS)
    backprop = dot_backprop if scorer == "dot" else neumf_backprop
    hand = ByHand(
        backprop,
        config.rho_shared,
        config.rho_private,
        config.private_steps,
        config.private_weight_decay,
    )
    own = people(algorithm.scorer.user_size)
    return Case(algorithm, hand, shared_numbers(algorithm), own, negatives)


def dense_update(update: Update, shared: Shared) -> Shared:
    """The update with rows put into whole tables."""
    found = {name: value.numpy() for name, value in update.dense.items()}
    for name, (index, rows) in update.rows.items():
        found[name] = np.zeros_like(shared[name])
        found[name][index.numpy()] = rows.numpy()
    return found


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-10)


def test_one_users_round_is_the_calculation_by_hand(case: Case) -> None:
    shared = {name: torch.from_numpy(value) for name, value in case.shared.items()}
    for user in range(3):
        own = {name: value[user] for name, value in case.private.items()}
        one = interactions().take(np.array([user]))
        update, state = case.algorithm.local_update(shared, own, one, 1)

        samples = samples_of(user, case.negatives)
        loss, sent = case.hand.local_round(case.shared, case.people[user], samples)
        assert_same(update.loss, loss)
        assert update.rows["items"][0].tolist() == sorted({item for item, _, _ in samples})
        assert update.touched == len(update.rows["items"][0])
        found = dense_update(update, case.shared)
        assert found.keys() == sent.keys()
        for name, value in sent.items():
            assert_same(found[name], value)
        person = case.people[user]
        assert_same(state["user"], person.vector)
        assert_same(state["adam_mean"], person.mean)
        assert_same(state["adam_square"], person.square)
        assert int(state["adam_step"]) == case.hand.steps


def test_two_rounds_of_three_users_are_the_calculation_by_hand(case: Case) -> None:
    algorithm, data = case.algorithm, interactions()
    server = algorithm.init_server()
    for name, value in case.shared.items():
        server.shared[name].copy_(torch.from_numpy(value))
    private = case.private
    moments = {name: (np.zeros_like(v), np.zeros_like(v)) for name, v in case.shared.items()}
    decay = algorithm.config.item_weight_decay
    for round in (1, 2):
        result = algorithm.block_update(Download(server.shared), private, data, round)
        assert result is not None
        update, private = result

        samples = [samples_of(user, case.negatives) for user in range(3)]
        replies = [
            case.hand.local_round(case.shared, person, own)
            for person, own in zip(case.people, samples, strict=True)
        ]
        total = {name: sum(sent[name] for _, sent in replies) for name in case.shared}
        assert_same(update.loss, sum(loss for loss, _ in replies))
        for name, value in dense_update(update, case.shared).items():
            assert_same(value, total[name])
        assert_same(private["user"], np.stack([p.vector for p in case.people]))

        algorithm.aggregate(server, {-1: update}, round)
        touched = sorted({item for own in samples for item, _, _ in own})
        for name, value in case.shared.items():
            gradient = total[name] / 3
            if name == "items":
                gradient[touched] += decay * value[touched]
            mean, square = moments[name]
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.999 * square + 0.001 * gradient**2
            moments[name] = mean, square
            step = mean / (1 - 0.9**round) / (np.sqrt(square / (1 - 0.999**round)) + 1e-8)
            sgd = algorithm.config.server_optimizer == "sgd"
            case.shared[name] = value - SERVER_LR * (gradient if sgd else step)
            assert_same(server.shared[name], case.shared[name])
    if not case.negatives:  # nobody touched the last item: no gradient, and no weight decay either
        assert_same(server.shared["items"][3], shared_numbers(algorithm)["items"][3])


@pytest.mark.parametrize("scorer", ["dot", "neumf"])
@pytest.mark.parametrize("loss", ["chunked-sum", "mean"])
def test_chunks_of_128_samples_are_summed(scorer: str, loss: str) -> None:
    # 128 positives on two items and 256 negatives on the other two: three full chunks, whatever
    # the order in which samples fall into them.
    items = np.array([0] * 100 + [1] * 28)
    data = Interactions(items, np.array([0, 128]), user_keys(["a"]), ITEMS)
    settings = {"scorer": scorer, "embedding_dim": 2, "dtype": "float64", "num_negatives": 2}
    config = make_config(
        "fedrecgel", {**settings, "loss": loss, "rho_shared": 0.3, "rho_private": 0.2}
    )
    algorithm: Any = make_algorithm(config, ITEMS)
    shared, person = shared_numbers(algorithm), people(algorithm.scorer.user_size)[0]
    state = {
        "user": torch.from_numpy(person.vector),
        "adam_mean": torch.from_numpy(person.mean),
        "adam_square": torch.from_numpy(person.square),
        "adam_step": torch.tensor(0),
    }
    download = {name: torch.from_numpy(value) for name, value in shared.items()}
    one, _ = algorithm.local_update(download, state, data, 1)
    stacked = {name: value[None] for name, value in state.items()}
    block, _ = algorithm.block_update(Download(download), stacked, data, 1)

    weight = 1 / 128 if loss == "chunked-sum" else 1 / 384
    samples = [(item, 1.0, weight) for item in items.tolist()]
    samples += [(item, 0.0, weight) for item in (2, 3) for _ in range(128)]
    hand = ByHand(dot_backprop if scorer == "dot" else neumf_backprop, 0.3, 0.2, 1, 0.0)
    expected, sent = hand.local_round(shared, person, samples)
    for update in (one, block):
        assert_same(update.loss, expected)
        for name, value in dense_update(update, shared).items():
            assert_same(value, sent[name])


def test_the_dot_scorers_shared_perturbation_only_shifts_logits() -> None:
    """Closed form of SAM: logit i moves by rho c_i (|u|^2 + 1) / (|c| sqrt(|u|^2 + 1))."""
    user, rows = np.array([0.6, -0.8]), np.array([[1.0, 0.5, 0.1], [-0.5, 1.0, -0.2]])
    logits = np.array([0.3, -1.3])  # 0.6 - 0.4 + 0.1 and -0.3 - 0.8 - 0.2
    label, weight, rho = np.array([1.0, 0.0]), 0.5, 0.1
    c = weight * (1 / (1 + np.exp(-logits)) - label)
    # |u|^2 + 1 = 2
    shifted = logits + rho * c * 2 / (np.sqrt((c**2).sum()) * np.sqrt(2))
    moved = weight * (1 / (1 + np.exp(-shifted)) - label)
    expected = moved[:, None] * np.array([0.6, -0.8, 1.0])

    hand = ByHand(dot_backprop, rho, 0.0, 1, 0.0)
    samples = [(0, 1.0, 0.5), (1, 0.0, 0.5)]
    assert_same(hand.shared_gradient({"items": rows}, user, samples)["items"], expected)

    settings = {"scorer": "dot", "embedding_dim": 2, "dtype": "float64", "num_negatives": 1}
    config = make_config("fedrecgel", {**settings, "rho_shared": rho, "rho_private": 0.0})
    algorithm: Any = make_algorithm(config, 2)
    data = Interactions(np.array([0]), np.array([0, 1]), user_keys(["a"]), 2)
    private = {**algorithm.init_private(data.keys), "user": torch.from_numpy(user)[None]}
    shared = {"items": torch.from_numpy(rows)}
    update, _ = algorithm.block_update(Download(shared), private, data, 1)
    assert_same(update.rows["items"][1], expected)
    own = {name: value[0] for name, value in private.items()}
    one, _ = algorithm.local_update(shared, own, data, 1)
    assert_same(one.rows["items"][1], expected)
    # The pair's loss: -log sigmoid(0.3) and -log(1 - sigmoid(-1.3)), a half each.
    assert_same(one.loss, 0.5 * (0.5543552444685271 + 0.2410084538329922))
