"""FedMF, PFedRec and FedRAP against plain numpy: sample by sample, whole tables, no autograd.

The package works on copies of touched rows, on many users at once, with samples merged; here every
user has a whole table of their own. Of the twelve items each user leaves some alone, other ones
in each round, and some only one or two of the three users touch.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import (
    ITEMS,
    KEYS,
    SETTINGS,
    Array,
    Sample,
    bce,
    data,
    minibatches,
    numbers,
    same,
    sigmoid,
    touched,
    whole,
)

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.state import State, Update
from fedrecgel.simulation.compare.plan import draw_trials

DIM = 3
LAYOUTS = [(4, 0), (4, 20), (2048, 0)]
"""Samples in a minibatch: one to four minibatches a user, or one. Rows in a group: all, or one."""


def setup(name: str, **settings: Any) -> tuple[Any, Any]:
    config = make_config(name, {**SETTINGS, "embedding_dim": DIM, **settings})
    algorithm: Any = make_algorithm(config, ITEMS)
    return algorithm, algorithm.init_server()


def epochs_of(user: int, config: Any, round: int) -> Iterator[list[list[Sample]]]:
    return minibatches(user, round, config.local_epochs, config.batch_size)


def train(algorithm: Any, server: Any, private: State, round: int) -> tuple[Any, State, Any]:
    """A round: the block's update, which the server takes, and state; the update of each alone."""
    download = Download(server.shared)
    block, state = algorithm.block_update(download, private, data(), round)
    alone: list[Update] = []
    for user in range(3):
        own = {name: value[user] for name, value in private.items()}
        update, one = algorithm.local_update(download.user(user), own, data([user]), round)
        for name, value in one.items():
            same(value, state[name][user].numpy())
        index, rows = update.rows[algorithm.table]
        assert index.tolist() == touched(user, round)
        assert rows.abs().amax(1).min() > 1e-3  # all of them move
        alone.append(update)
    for name in {"user", "weight", "bias"} & private.keys():
        assert (state[name] - private[name]).abs().amax(1).min() > 1e-3
    algorithm.aggregate(server, {-1: block}, round)
    return block, state, alone


def test_the_users_leave_rows_alone() -> None:
    """What the tests below need in order to tell a row's users from all, touched from untouched."""
    first, second = ([set(touched(user, round)) for user in range(3)] for round in (1, 2))
    assert [len(row) for row in first] == [7, 3, 10]
    assert all(one - two for one, two in zip(first, second, strict=True))
    assert {sum(i in row for row in first) for i in range(ITEMS)} == {0, 1, 2, 3}


# --- FedMF ---------------------------------------------------------------------------------------


def fedmf_client(
    table: Array, user: Array, epochs: Iterator[list[list[Sample]]]
) -> tuple[Array, Array, float]:
    """Table, vector and mean loss after a round with rates 0.6 and 0.3."""
    losses = []
    for batch in chain.from_iterable(epochs):
        losses.append(np.mean([bce(float(user @ table[i]), y) for i, y in batch]))
        by_user, by_table = np.zeros_like(user), np.zeros_like(table)
        for item, label in batch:
            c = (sigmoid(float(user @ table[item])) - label) / len(batch)
            by_user += c * table[item]
            by_table[item] += c * user
        user, table = user - 0.3 * by_user, table - 0.6 * by_table
    return table, user, float(np.mean(losses))


@pytest.mark.parametrize(("batch_size", "block_size"), LAYOUTS)
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("row_average", [False, True])
def test_fedmf_is_the_calculation_by_hand(
    batch_size: int, block_size: int, epochs: int, row_average: bool
) -> None:
    sizes = {"batch_size": batch_size, "block_size": block_size, "local_epochs": epochs}
    rates = {"item_lr": 0.6 / batch_size, "local_lr": 0.3}
    algorithm, server = setup("fedmf", **sizes, **rates, row_average=row_average)
    table, users = numbers(ITEMS, DIM, step=7), numbers(3, DIM, step=11)
    server.shared["items"].copy_(torch.from_numpy(table))
    private = {"user": torch.from_numpy(users.copy())}
    ever = np.zeros(ITEMS)
    for round in (1, 2):
        update, private, alone = train(algorithm, server, private, round)
        change, losses, count = np.zeros_like(table), [], np.zeros(ITEMS)
        for user in range(3):
            own = epochs_of(user, algorithm.config, round)
            tuned, users[user], loss = fedmf_client(table, users[user], own)
            same(whole(alone[user], "items"), tuned - table)
            same(alone[user].loss, loss)
            change += tuned - table
            losses.append(loss)
            count[touched(user, round)] += 1
        same(private["user"], users)
        same(update.loss, sum(losses))
        # A row that nobody touched has a change of 0, whatever it is divided by.
        table = table + (change / np.maximum(count, 1)[:, None] if row_average else change / 3)
        same(server.shared["items"], table)
        ever += count
        if row_average:
            same(server.shared["touched"][:, 0], ever)


# --- PFedRec -------------------------------------------------------------------------------------


def pfedrec_client(
    table: Array, weight: Array, bias: float, epochs: Iterator[list[list[Sample]]]
) -> tuple[Array, Array, float]:
    """Table, weight and bias after a round with rates 0.6 and 0.3."""
    for batch in chain.from_iterable(epochs):
        n, by_table = len(batch), np.zeros_like(table)
        cs = [(sigmoid(float(weight @ table[i] + bias)) - y) / n for i, y in batch]
        by_weight = sum(c * table[i] for c, (i, _) in zip(cs, batch, strict=True))
        weight, bias = weight - 0.3 * by_weight, bias - 0.3 * sum(cs)
        for item, label in batch:
            c = (sigmoid(float(weight @ table[item] + bias)) - label) / n
            by_table[item] += c * weight
        table = table - 0.6 * by_table
    return table, weight, bias


@pytest.mark.parametrize(("batch_size", "block_size"), LAYOUTS)
def test_pfedrec_is_the_calculation_by_hand(batch_size: int, block_size: int) -> None:
    rates = {"item_lr": 0.6 / batch_size, "local_lr": 0.3}
    algorithm, server = setup("pfedrec", batch_size=batch_size, block_size=block_size, **rates)
    table = numbers(ITEMS, DIM, step=7)
    weights, biases = numbers(3, DIM, step=11), numbers(3, step=3)
    server.shared["items"].copy_(torch.from_numpy(table))
    private = algorithm.init_private(KEYS)
    private["weight"].copy_(torch.from_numpy(weights))
    private["bias"].copy_(torch.from_numpy(biases[:, None]))
    for round in (1, 2):
        _, private, alone = train(algorithm, server, private, round)
        tables = []
        for user in range(3):
            own = epochs_of(user, algorithm.config, round)
            tuned, weights[user], biases[user] = pfedrec_client(
                table, weights[user], biases[user], own
            )
            same(whole(alone[user], "items"), tuned - table)
            tables.append(tuned)
        table = np.mean(tables, axis=0)
        same(server.shared["items"], table)
        same(private["weight"], weights)
        same(private["bias"][:, 0], biases)
        view = algorithm.personal_view(Download(server.shared), private)
        # Scores: the user's own rows where they touched them, the new average elsewhere.
        for user in range(3):
            rows = table.copy()
            rows[touched(user, round)] = tables[user][touched(user, round)]
            scores = view.catalogue(torch.tensor([user]))[0]
            same(scores, rows @ weights[user] + biases[user])
        plain, _ = setup("pfedrec", score_with="global")
        shared = {name: private[name] for name in ("weight", "bias")}
        view = plain.personal_view(Download(server.shared), shared)
        same(view.catalogue(torch.arange(3)), weights @ table.T + biases[:, None])


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
        same(kept["own_scores"][user], [own[items.index(i)] for i in expected])


# --- FedRAP --------------------------------------------------------------------------------------

DIFFERENCE, SPARSITY, DECAY, LOCAL, RATE = 0.2, 0.05, 0.03, 0.4, 0.7


@dataclass(frozen=True)
class Rap:
    """A user of FedRAP with two whole tables; how many epochs each of their rounds had."""

    weight: Array
    bias: float
    personal: Array
    common: Array
    epochs: tuple[int, ...] = field(default=())

    def step(self, batch: list[Sample], grown: float, speed: float) -> tuple["Rap", float]:
        """One minibatch, and its objective before the step."""
        n, w, b, objective = len(batch), self.weight, self.bias, 0.0
        by_w, by_b = DECAY * w, DECAY * b
        by_common, by_personal = DECAY * self.common, DECAY * self.personal
        for item, label in batch:
            personal, common = self.personal[item], self.common[item]
            both, apart = personal + common, personal - common
            logit = float(w @ both + b)
            objective += bce(logit, label) / n
            objective -= DIFFERENCE * grown * np.mean(apart**2) / n
            objective += SPARSITY * grown * np.mean(np.abs(common)) / n
            slope = (sigmoid(logit) - label) / n
            by_w = by_w + slope * both
            by_b += slope
            pull = 2 * DIFFERENCE * grown * apart / DIM / n
            by_personal[item] += slope * w - pull
            by_common[item] += slope * w + pull + SPARSITY * grown * np.sign(common) / DIM / n
        stepped = replace(
            self,
            weight=w - LOCAL * speed * by_w,
            bias=b - LOCAL * speed * by_b,
            common=self.common - RATE * speed * by_common,
            personal=self.personal - RATE * speed * by_personal,
        )
        return stepped, objective

    def round(self, common: Array, config: Any, user: int, round: int) -> "Rap":
        grown = np.tanh(round / 10) if config.schedule == "tanh" else 1.0
        person, speed = replace(self, common=common), 0.97 ** (round - 1)
        objective, before = 0.0, None
        for number, epoch in enumerate(epochs_of(user, config, round), start=1):
            for batch in epoch:
                person, more = person.step(batch, grown, speed)
                objective, speed = objective + more, speed * 0.95
            mean = objective / number
            if before is not None and abs(mean - before) < config.tolerance * abs(before):
                break
            before = mean
        return replace(person, epochs=(*self.epochs, number))


@pytest.mark.parametrize("tolerance", [0.0, 0.3])
@pytest.mark.parametrize("schedule", ["none", "tanh"])
@pytest.mark.parametrize(("batch_size", "block_size"), LAYOUTS)
def test_fedrap_is_the_calculation_by_hand(
    batch_size: int, block_size: int, schedule: str, tolerance: float
) -> None:
    sizes = {"batch_size": batch_size, "block_size": block_size, "local_epochs": 4}
    rates = {"item_lr": RATE / batch_size, "local_lr": LOCAL, "weight_decay": DECAY}
    weights = {"difference": DIFFERENCE, "sparsity": SPARSITY, "schedule": schedule}
    algorithm, server = setup("fedrap", **sizes, **rates, **weights, tolerance=tolerance)
    table = numbers(ITEMS, DIM, step=7)
    server.shared["common"].copy_(torch.from_numpy(table))
    private, first = algorithm.init_private(KEYS), algorithm.first.numpy()
    affine = private["weight"].numpy(), private["bias"][:, 0].tolist()
    people = [Rap(w.copy(), b, first, table) for w, b in zip(*affine, strict=True)]
    for round in (1, 2, 3):
        _, private, alone = train(algorithm, server, private, round)
        people = [p.round(table, algorithm.config, u, round) for u, p in enumerate(people)]
        for person, update in zip(people, alone, strict=True):
            # What a user sends: by how much all rows shrank, and the change of some beyond that.
            shrunk = 1 + float(update.dense["shrinkage"])
            same(shrunk * table + whole(update, "common"), person.common)
        table = np.mean([p.common for p in people], axis=0)
        same(server.shared["common"], table)
        same(private["weight"], np.stack([p.weight for p in people]))
        same(private["bias"][:, 0], [p.bias for p in people])
        view = algorithm.personal_view(Download(server.shared), private)
        scores = [(p.personal + table) @ p.weight + p.bias for p in people]
        same(view.catalogue(torch.arange(3)), np.stack(scores))
    stopped = [epochs for person in people for epochs in person.epochs]
    assert set(stopped) == {4} if tolerance == 0 else min(stopped) < 4


def test_fedrap_refuses_a_decay_that_turns_rows_around() -> None:
    """A step of 0.5 * 2048 on the mean loss times a decay of 0.001 takes 1.024 of a row away."""
    with pytest.raises(
        ConfigError, match=r"item-lr \* batch-size of 1024 times weight-decay 0.001"
    ):
        make_config("fedrap", {"item-lr": 0.5, "weight-decay": 1e-3})
    with pytest.raises(ConfigError, match=r"local-lr of 2 times weight-decay 0\.5"):
        make_config("fedrap", {"local-lr": 2, "weight-decay": 0.5, "item-lr": 1e-6})
    trials = draw_trials(make_config("fedrap"), 10_000)
    assert max(trial.item_rate * trial.weight_decay for trial in trials) < 1
