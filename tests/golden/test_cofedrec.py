"""CoFedRec against plain numpy: a client's round, the contrastive term, the server's step."""

import functools
import math
from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import (
    ITEMS,
    SEED,
    SETTINGS,
    Array,
    Sample,
    bce,
    change_of,
    data,
    minibatches,
    numbers,
    same,
    sigmoid,
    slopes,
    touched,
    whole,
)

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.cofedrec import contrastive_loss, elbow
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.hashing import integers, mix

SIZE = 4
LABELS = np.array([0, 0, 1, 1, 2, 2, 0, 1, 3, 0, 1, 2])
"""Clusters of the items; item 8 has one of its own."""


def algorithm_of(**settings: Any) -> Any:
    config = make_config("cofedrec", {**SETTINGS, "embedding_dim": SIZE, **settings})
    return make_algorithm(config, ITEMS)


# --- client --------------------------------------------------------------------------------------


def contrast(rows: Array, labels: Array, tau: float) -> float:
    unit = rows / np.sqrt((rows * rows).sum(1, keepdims=True))
    loss = 0.0
    for i in range(len(rows)):
        others = [a for a in range(len(rows)) if a != i]
        same_cluster = [z for z in others if labels[z] == labels[i]]
        if not same_cluster:
            continue
        below = sum(math.exp(unit[i] @ unit[a] / tau) for a in others)
        logs = [math.log(math.exp(unit[i] @ unit[z] / tau) / below) for z in same_cluster]
        loss -= tau / 0.5 * sum(logs) / len(logs)
    return loss


def test_the_contrastive_loss_is_the_sum_by_hand() -> None:
    rows, labels = numbers(5, SIZE, step=7), np.array([0, 1, 0, 0, 2])
    together = torch.from_numpy(labels)
    same_cluster = (together == together[:, None]) & ~torch.eye(5, dtype=torch.bool)
    found = contrastive_loss(torch.from_numpy(np.stack([rows, 2 * rows])), same_cluster, 0.3)
    same(found, 2 * contrast(rows, labels, 0.3))  # lengths do not matter


def client_step(
    rows: Array, weight: Array, bias: float, batch: list[Sample], sample: Array | None
) -> tuple[Array, Array, float, float]:
    """Table, weight and bias after a minibatch, and its loss before; without a sample no contrast.

    Rates are 0.3 and 3.2, the contrastive term's 0.1.
    """
    n = len(batch)
    logits = [float(rows[i] @ weight + bias) for i, _ in batch]
    loss = sum(bce(s, y) / n for s, (_, y) in zip(logits, batch, strict=True))
    cs = [(sigmoid(s) - y) / n for s, (_, y) in zip(logits, batch, strict=True)]
    weight = weight - 0.3 * sum(c * rows[i] for c, (i, _) in zip(cs, batch, strict=True))
    bias = bias - 0.3 * sum(cs)
    new = rows.copy()
    for item, label in batch:
        new[item] -= 3.2 * (sigmoid(float(rows[item] @ weight + bias)) - label) / n * weight
    if sample is not None:
        loss_of = functools.partial(contrast, labels=LABELS[sample], tau=0.4)
        new[sample] -= 0.1 * slopes(loss_of, rows[sample])
    return new, weight, bias, loss


@pytest.mark.parametrize(
    ("clustered", "contrast_items", "batch_size", "engine"),
    [
        (False, 0, 64, "block"),
        (False, 5, 64, "block"),
        (True, 0, 64, "block"),
        (True, 0, 4, "block"),
        (True, 5, 4, "block"),
        (True, 5, 4, "loop"),
    ],
)
def test_a_round_is_the_calculation_by_hand(
    clustered: bool, contrast_items: int, batch_size: int, engine: str
) -> None:
    """User b has a group's table, the others their own; there are no labels in round 1."""
    sizes = {"batch_size": batch_size, "engine": engine, "contrast_items": contrast_items}
    rates = {"item_lr": 3.2 / batch_size, "local_lr": 0.3, "contrast": 0.1, "temperature": 0.4}
    algorithm, round = algorithm_of(**sizes, **rates), 2 if clustered else 1
    sample = None
    if clustered:
        drawn = np.argsort(mix("contrast", SEED, round, np.arange(ITEMS)))
        sample = np.sort(drawn[: contrast_items or ITEMS])
        # Not the first items, and not their labels.
        assert not contrast_items or (LABELS[sample] != LABELS[:contrast_items]).any()
    initial = algorithm.initial.numpy()
    tables, group = numbers(3, ITEMS, SIZE, step=5), numbers(1, ITEMS, SIZE, step=13)
    private = {
        "weight": torch.from_numpy(numbers(3, SIZE, step=3)),
        "bias": torch.from_numpy(numbers(3, 1, step=17)),
        "table": torch.from_numpy(tables),
    }
    labels = torch.from_numpy(LABELS if clustered else np.full(ITEMS, -1))
    own = {"group": torch.from_numpy(group)}
    download = Download({"labels": labels}, own, torch.tensor([-1, 0, -1]))
    updates, state = algorithm.update_users(download, private, data(), round)
    scores = algorithm.personal_view(download, private).catalogue(torch.arange(3))
    for who in range(3):
        start = initial + (group[0] if who == 1 else tables[who])
        weight, bias = private["weight"][who].numpy(), float(private["bias"][who, 0])
        same(scores[who], start @ weight + bias)
        rows, losses = start, []
        for batch in chain.from_iterable(minibatches(who, round, 2, batch_size)):
            rows, weight, bias, loss = client_step(rows, weight, bias, batch, sample)
            losses.append(loss)
        same(state["table"][who], rows - initial, atol=1e-7)
        same(state["weight"][who], weight, atol=1e-7)
        same(state["bias"][who], [bias], atol=1e-7)
        same(updates[who].loss, np.mean(losses), atol=1e-7)
        assert torch.equal(torch.from_numpy(whole(updates[who], "table")), state["table"][who])
        moved = np.flatnonzero(np.abs(rows - start).max(1) > 1e-3)
        # Item 8 moves as well when it is in the sample: the others are pushed away from it.
        assert set(moved) == set(touched(who, round)) | set([] if sample is None else sample)


# --- server --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ([5.0, 4.9, 4.8, 1.0, 0.5], 2),  # to the line: 0, 1.025, 2.05, -0.625, 0
        ([9.0, 1.0, 0.5, 0.0], 1),  # 0, -5, -2.5, 0
        ([3.0, 2.0, 1.0], 0),  # a line has no elbow
        ([3.0, 1.0], 0),
        ([3.0], 0),
    ],
)
def test_the_elbow_is_farthest_from_the_line(values: list[float], place: int) -> None:
    assert elbow(torch.tensor(values, dtype=torch.float64)) == place


def group_of(tables: Array, anchor: int, items: list[int]) -> list[int]:
    """From the user most like the anchor in these items, who is the anchor, down to the elbow."""
    similar = []
    for table in tables:
        pairs = [(tables[anchor, i], table[i]) for i in items]
        similar.append(sum(a @ b / math.sqrt((a @ a) * (b @ b)) for a, b in pairs))
    order = sorted(range(len(tables)), key=lambda user: -similar[user])
    ranked = np.array(similar)[order]
    chord = ranked[0] + (ranked[-1] - ranked[0]) * np.arange(len(order)) / (len(order) - 1)
    return sorted(order[: int(np.argmax(np.abs(ranked - chord))) + 1])


@pytest.mark.parametrize("round", [1, 2, 3, 4])
def test_the_server_gives_a_group_its_mean_table(round: int) -> None:
    """Even items have a first number around 9, odd ones around -9: the clusters of the mean table.

    Of two items of each user, other ones, it is the other way round, so no user's table has them.
    """
    tables = numbers(6, ITEMS, SIZE, step=11, scale=6.0)
    for user in range(6):
        for item in range(ITEMS):
            tables[user, item, 0] += 9.0 if (item % 2 == 0) != (item // 2 == user) else -9.0
    # What is sent is a table less the initial one, which is large here and without clusters.
    algorithm = algorithm_of(clusters=2, init_std=20.0)
    server = algorithm.init_server()
    sent = tables - algorithm.initial.numpy()
    updates = {user: change_of(table, "table") for user, table in enumerate(sent)}
    algorithm.aggregate(server, updates, round)
    labels = server.shared["labels"].tolist()
    assert sorted(set(labels)) == [0, 1]
    assert all(label == labels[item % 2] for item, label in enumerate(labels))
    anchor = int(integers(mix("anchor", SEED, round), 6))
    first = labels.index(int(integers(mix("cluster", SEED, round), 2)))
    group = group_of(tables, anchor, list(range(first, ITEMS, 2)))
    assert 1 < len(group) < 6
    assert group != group_of(tables, anchor, list(range(1 - first, ITEMS, 2)))

    download = algorithm.download(server, torch.arange(7))
    assert download.which is not None
    assert [u for u, row in enumerate(download.which.tolist()) if row == 0] == group
    assert len(download.addressed["group"]) == 1
    same(download.addressed["group"][0], np.mean(sent[group], axis=0))
    # Who trains again has a table of their own; the group's is dropped with its last member.
    algorithm.aggregate(server, {u: updates[u] for u in group}, round + 1)
    assert str(round) not in server.addressed
