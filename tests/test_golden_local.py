"""FedMF, PFedRec and FedRAP against plain numpy: sample by sample, whole tables, no autograd.

Three users over four items; every user has two items they never trained on, so with two negatives
for each positive the draw leaves no choice. The package works on copies of touched rows, on many
users at once, with samples merged; here every user has a whole table of their own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
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
Batch = list[tuple[int, float]]

TRAIN = [[0, 1, 1], [2, 1], [0, 2, 2]]  # the first and the last user have an item twice
UNSEEN = [[2, 3], [0, 3], [1, 3]]
KEYS = user_keys(["a", "b", "c"])
ITEMS, DIM, SEED = 4, 3, 7


def data() -> Interactions:
    items = np.array([item for row in TRAIN for item in row])
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in TRAIN])])
    return Interactions(items, offsets, KEYS, ITEMS)


def sigmoid(x: float) -> float:
    return float(1.0 / (1.0 + np.exp(-x)))


def bce(logit: float, label: float) -> float:
    return float(np.log1p(np.exp(logit)) - label * logit)


def batches(user: int, config: Any, round: int) -> Iterator[list[Batch]]:
    """Epochs of minibatches in the order that the hashes give."""
    drawn = [(item, 1.0) for item in TRAIN[user]]
    unseen = negatives_of(user, config, round)
    samples = []
    for place, (item, label) in enumerate(drawn):
        samples.append((item, label))
        samples += [(other, 0.0) for other in unseen[place]]
    for epoch in range(config.local_epochs):
        number = 0 if max(len(row) for row in TRAIN) * 3 <= config.batch_size else epoch
        keys = mix(
            "minibatches", SEED, round, number, KEYS[user : user + 1], np.arange(len(samples))
        )
        order = np.argsort(keys >> np.uint64(24), kind="stable")
        shuffled = [samples[i] for i in order]
        size = config.batch_size
        yield [shuffled[i : i + size] for i in range(0, len(shuffled), size)]


def negatives_of(user: int, config: Any, round: int) -> list[list[int]]:
    """Both unseen items for every positive; which comes first is the draw's."""
    found = draw_negatives(data().take(np.array([user])), 2, SEED, round).tolist()
    assert all(sorted(pair) == UNSEEN[user] for pair in found)
    return list(found)


def numbers(*shape: int, step: int) -> Array:
    """Every ``step``-th of 0..40 (41 is prime), centred: a fixed table without a generator."""
    count = int(np.prod(shape))
    return (0.9 * ((np.arange(1, count + 1) * step) % 41 - 20.0) / 20.0).reshape(shape)


def setup(name: str, **settings: Any) -> tuple[Any, Any]:
    common = {"embedding_dim": DIM, "dtype": "float64", "num_negatives": 2, "seed": SEED}
    algorithm: Any = make_algorithm(make_config(name, {**common, **settings}), ITEMS)
    return algorithm, algorithm.init_server()


def assert_same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-10)


def train(algorithm: Any, server: Any, private: Any, round: int) -> tuple[Any, Any]:
    """A round of all three users: block and loop must agree; the server steps."""
    download = Download(server.shared)
    update, state = algorithm.block_update(download, private, data(), round)
    for user in range(3):
        own = {name: value[user] for name, value in private.items()}
        one = data().take(np.array([user]))
        _, alone = algorithm.local_update(download.user(user), own, one, round)
        for name, value in alone.items():
            assert_same(value, state[name][user].numpy())
    algorithm.aggregate(server, {-1: update}, round)
    return update, state


# --- FedMF ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [4, 256])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("row_average", [False, True])
def test_fedmf_is_the_calculation_by_hand(batch_size: int, epochs: int, row_average: bool) -> None:
    algorithm, server = setup(
        "fedmf",
        batch_size=batch_size,
        local_epochs=epochs,
        item_lr=0.6 / batch_size,
        local_lr=0.3,
        row_average=row_average,
    )
    table, users = numbers(ITEMS, DIM, step=7), numbers(3, DIM, step=11)
    server.shared["items"].copy_(torch.from_numpy(table))
    private = {"user": torch.from_numpy(users.copy())}
    for round in (1, 2):
        update, private = train(algorithm, server, private, round)
        tables, losses = [], []
        for user in range(3):
            u, q, first = users[user], table.copy(), []
            for epoch in batches(user, algorithm.config, round):
                for batch in epoch:
                    by_u, by_q = np.zeros(DIM), np.zeros_like(q)
                    first.append(np.mean([bce(float(u @ q[i]), y) for i, y in batch]))
                    for item, label in batch:
                        c = (sigmoid(float(u @ q[item])) - label) / len(batch)
                        by_u += c * q[item]
                        by_q[item] += c * u
                    u, q = u - 0.3 * by_u, q - 0.6 * by_q
            users[user] = u
            tables.append(q)
            losses.append(np.mean(first))
        assert_same(private["user"], users)
        assert_same(update.loss, sum(losses))
        if row_average:
            touched = np.array(
                [[i in TRAIN[u] + UNSEEN[u] for i in range(ITEMS)] for u in range(3)]
            )
            change = np.stack(tables) - table
            table = table + change.sum(0) / touched.sum(0)[:, None]
            assert_same(server.shared["touched"][:, 0], round * touched.sum(0))
        else:
            table = np.mean(tables, axis=0)
        assert_same(server.shared["items"], table)


# --- PFedRec -------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch_size", [4, 256])
def test_pfedrec_is_the_calculation_by_hand(batch_size: int) -> None:
    algorithm, server = setup(
        "pfedrec", batch_size=batch_size, item_lr=0.6 / batch_size, local_lr=0.3
    )
    table, weights, biases = (
        numbers(ITEMS, DIM, step=7),
        numbers(3, DIM, step=11),
        numbers(3, step=3),
    )
    server.shared["items"].copy_(torch.from_numpy(table))
    private = algorithm.init_private(KEYS)
    private["weight"].copy_(torch.from_numpy(weights))
    private["bias"].copy_(torch.from_numpy(biases[:, None]))
    for round in (1, 2):
        _, private = train(algorithm, server, private, round)
        tables = []
        for user in range(3):
            w, b, q = weights[user], biases[user], table.copy()
            for epoch in batches(user, algorithm.config, round):
                for batch in epoch:
                    slopes = [(sigmoid(float(w @ q[i] + b)) - y) / len(batch) for i, y in batch]
                    by_w = sum(c * q[i] for c, (i, _) in zip(slopes, batch, strict=True))
                    w, b = w - 0.3 * by_w, b - 0.3 * sum(slopes)
                    by_q = np.zeros_like(q)
                    for item, label in batch:
                        by_q[item] += (sigmoid(float(w @ q[item] + b)) - label) / len(batch) * w
                    q = q - 0.6 * by_q
            weights[user], biases[user] = w, b
            tables.append(q)
        table = np.mean(tables, axis=0)
        assert_same(server.shared["items"], table)
        assert_same(private["weight"], weights)
        assert_same(private["bias"][:, 0], biases)
        view = algorithm.personal_view(Download(server.shared), private)
        # Scores: the user's own rows where it touched them, the new average elsewhere.
        own = np.stack(
            [
                [
                    (tables[u] if i in TRAIN[u] + UNSEEN[u] else table)[i] @ weights[u] + biases[u]
                    for i in range(ITEMS)
                ]
                for u in range(3)
            ]
        )
        assert_same(view.catalogue(torch.arange(3)), own)
        plain, _ = setup("pfedrec", score_with="global")
        shared = {name: private[name] for name in ("weight", "bias")}
        view = plain.personal_view(Download(server.shared), shared)
        assert_same(view.catalogue(torch.arange(3)), weights @ table.T + biases[:, None])


def test_a_device_with_little_room_keeps_the_rows_that_moved_most() -> None:
    algorithm, server = setup("pfedrec", item_lr=0.1)
    small, _ = setup("pfedrec", item_lr=0.1, personal_rows=2)
    download = Download(server.shared)
    _, state = algorithm.block_update(download, algorithm.init_private(KEYS), data(), 1)
    _, kept = small.block_update(download, small.init_private(KEYS), data(), 1)
    for user in range(3):
        items, own = state["own_items"][user].tolist(), state["own_scores"][user].tolist()
        after = (server.shared["items"] @ state["weight"][user] + state["bias"][user]).numpy()
        moved = {i: abs(s - after[i]) for i, s in zip(items, own, strict=True) if i >= 0}
        expected = sorted(sorted(moved, key=lambda i: -moved[i])[:2])
        assert kept["own_items"][user].tolist() == expected
        assert_same(kept["own_scores"][user], [own[items.index(i)] for i in expected])


# --- FedRAP --------------------------------------------------------------------------------------


@dataclass
class Rap:
    """A user of FedRAP with a whole table of their own."""

    weight: Array
    bias: float
    personal: Array
    epochs: list[int] = field(default_factory=list)


@pytest.mark.parametrize("tolerance", [0.0, 0.3])
@pytest.mark.parametrize("schedule", ["none", "tanh"])
@pytest.mark.parametrize("batch_size", [4, 2048])
def test_fedrap_is_the_calculation_by_hand(
    batch_size: int, schedule: str, tolerance: float
) -> None:
    difference, sparsity, decay, local, rate = 0.2, 0.05, 0.03, 0.4, 0.7
    algorithm, server = setup(
        "fedrap",
        batch_size=batch_size,
        item_lr=rate / batch_size,
        local_lr=local,
        local_epochs=4,
        difference=difference,
        sparsity=sparsity,
        weight_decay=decay,
        schedule=schedule,
        tolerance=tolerance,
    )
    table = numbers(ITEMS, DIM, step=7)
    server.shared["common"].copy_(torch.from_numpy(table))
    private = algorithm.init_private(KEYS)
    first = algorithm.first.numpy()
    people = [
        Rap(private["weight"][u].numpy().copy(), float(private["bias"][u]), first.copy())
        for u in range(3)
    ]
    for round in (1, 2, 3):
        _, private = train(algorithm, server, private, round)
        grown = np.tanh(round / 10) if schedule == "tanh" else 1.0
        tables = []
        for user, person in enumerate(people):
            common, speed, objective, before = table.copy(), 0.97 ** (round - 1), 0.0, None
            for number, epoch in enumerate(batches(user, algorithm.config, round), start=1):
                for batch in epoch:
                    n = len(batch)
                    w, b, personal = person.weight, person.bias, person.personal
                    by_w, by_b = decay * w, decay * b
                    by_c, by_d, loss = decay * common, decay * personal, 0.0
                    for item, label in batch:
                        both = personal[item] + common[item]
                        apart = personal[item] - common[item]
                        slope = (sigmoid(float(w @ both + b)) - label) / n
                        loss += bce(float(w @ both + b), label) / n
                        objective += -difference * grown * np.mean(apart**2) / n
                        objective += sparsity * grown * np.mean(np.abs(common[item])) / n
                        by_w = by_w + slope * both
                        by_b += slope
                        pull = 2 * difference * grown * apart / DIM / n
                        by_d[item] += slope * w - pull
                        by_c[item] += slope * w + pull
                        by_c[item] += sparsity * grown * np.sign(common[item]) / DIM / n
                    objective += loss
                    person.weight, person.bias = w - local * speed * by_w, b - local * speed * by_b
                    common = common - rate * speed * by_c
                    person.personal = personal - rate * speed * by_d
                    speed *= 0.95
                mean = objective / number
                if before is not None and abs(mean - before) < tolerance * abs(before):
                    break
                before = mean
            person.epochs.append(number)
            tables.append(common)
        table = np.mean(tables, axis=0)
        assert_same(server.shared["common"], table)
        assert_same(private["weight"], np.stack([p.weight for p in people]))
        assert_same(private["bias"][:, 0], [p.bias for p in people])
        view = algorithm.personal_view(Download(server.shared), private)
        scores = [(p.personal + table) @ p.weight + p.bias for p in people]
        assert_same(view.catalogue(torch.arange(3)), np.stack(scores))
    stopped = [epochs for person in people for epochs in person.epochs]
    assert set(stopped) == {4} if tolerance == 0 else min(stopped) < 4
