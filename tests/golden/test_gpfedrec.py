"""GPFedRec against plain numpy: a client's round, the server's graph."""

import math
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
    change_of,
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

SIZE = 8
"""Of the embeddings; the layers have 8, 4 and 2 units."""
PULL, ITEM, NETWORK, USER = 0.2, 3.2, 0.3, 0.7
Network = list[tuple[Array, Array]]


def algorithm_of(**settings: Any) -> Any:
    config = make_config("gpfedrec", {**SETTINGS, "embedding_dim": SIZE, **settings})
    return make_algorithm(config, ITEMS)


# --- client --------------------------------------------------------------------------------------


def forward(user: Array, row: Array, network: Network) -> tuple[float, list[Array]]:
    """Logit of one item, and the input of each layer."""
    inputs = [np.concatenate([user, row])]
    for weight, bias in network[:-1]:
        inputs.append(np.maximum(weight @ inputs[-1] + bias, 0.0))
    weight, bias = network[-1]
    return float((weight @ inputs[-1] + bias)[0]), inputs


def backward(inputs: list[Array], network: Network, slope: float) -> tuple[Network, Array]:
    """Gradients by the network, and by [user | row], of slope * logit."""
    found: Network = []
    back = np.array([slope])
    for place in reversed(range(len(network))):
        if place < len(network) - 1:
            back = back * (inputs[place + 1] > 0)
        found.insert(0, (np.outer(back, inputs[place]), back))
        back = network[place][0].T @ back
    return found, back


def client_step(
    table: Array, goal: Array | None, user: Array, network: Network, batch: list[Sample]
) -> tuple[Array, Array, Network, float]:
    """Table, vector and network after a minibatch; its loss before."""
    loss, n = 0.0, len(batch)
    by_table, by_user = np.zeros_like(table), np.zeros_like(user)
    by_network = [(np.zeros_like(w), np.zeros_like(b)) for w, b in network]
    for item, label in batch:
        logit, inputs = forward(user, table[item], network)
        loss += bce(logit, label) / n
        parts, back = backward(inputs, network, (sigmoid(logit) - label) / n)
        by_user += back[:SIZE]
        by_table[item] += back[SIZE:]
        by_network = [(a + c, b + d) for (a, b), (c, d) in zip(by_network, parts, strict=True)]
    pulled = 0.0 if goal is None else PULL * (table - goal)
    steps = zip(network, by_network, strict=True)
    stepped = [(w - NETWORK * a, b - NETWORK * c) for (w, b), (a, c) in steps]
    return table - ITEM * by_table - pulled, user - USER * by_user, stepped, loss


@pytest.mark.parametrize(
    ("batch_size", "more"), [(4, {}), (4, {"block_size": 20}), (4, {"engine": "loop"}), (64, {})]
)
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_round_is_the_calculation_by_hand(
    epochs: int, batch_size: int, more: dict[str, Any]
) -> None:
    """User b has no neighbours' table yet. Each vector, unit and touched row of each user moves."""
    sizes = {"local_epochs": epochs, "batch_size": batch_size, **more}
    rates = {"item_lr": ITEM / batch_size, "pull": PULL, "local_lr": NETWORK, "user_lr": USER}
    algorithm = algorithm_of(**sizes, **rates)
    items, goals = numbers(ITEMS, SIZE, step=7), numbers(2, ITEMS, SIZE, step=5)
    private, names = algorithm.init_private(KEYS), algorithm.mlp.names
    for place, name in enumerate(names):
        values = numbers(*private[name].shape, step=9 + 2 * place)
        # So every unit is alive for some samples of each user, and most are dead for others.
        private[name] = torch.from_numpy(values + 0.5 if name.endswith("bias") else values)
    private["user"] = torch.from_numpy(numbers(3, SIZE, step=11))
    own = {"neighbours": torch.from_numpy(goals)}
    download = Download({"items": torch.from_numpy(items)}, own, torch.tensor([0, -1, 1]))
    updates, state = algorithm.update_users(download, private, data(), 1)
    for name in ("user", *names):  # of the weights each unit's
        assert (state[name] - private[name]).abs().amax(-1).min() > 1e-4, name
    for who, goal in enumerate([goals[0], None, goals[1]]):
        user, table = private["user"][who].numpy(), items
        network = [
            (private[f"mlp.{i}.weight"][who].numpy(), private[f"mlp.{i}.bias"][who, 0].numpy())
            for i in range(4)
        ]
        losses = []
        for batch in chain.from_iterable(minibatches(who, 1, epochs, batch_size)):
            table, user, network, loss = client_step(table, goal, user, network, batch)
            losses.append(loss)
        same(updates[who].loss, np.mean(losses))
        same(whole(updates[who], "items"), table - items)
        assert np.abs(table - items)[touched(who, 1)].max(1).min() > 1e-3
        same(state["user"][who], user)
        for layer, (weight, bias) in enumerate(network):
            same(state[f"mlp.{layer}.weight"][who], weight)
            same(state[f"mlp.{layer}.bias"][who, 0], bias)
        same(state["scores"][who], [forward(user, row, network)[0] for row in table])


# --- server --------------------------------------------------------------------------------------


def graph(tables: Array, threshold: float, top: int, layers: int, distance: bool) -> Array:
    """Row-normalised adjacency, as the paper says it."""
    flat = tables.reshape(len(tables), -1)
    count = len(flat)
    similar = np.zeros((count, count))
    for u in range(count):
        for v in range(count):
            cosine = flat[u] @ flat[v] / math.sqrt((flat[u] @ flat[u]) * (flat[v] @ flat[v]))
            similar[u, v] = (0.0 if u == v else 1.0 - cosine) if distance else cosine
    weights = np.zeros_like(similar)
    for u in range(count):
        if top:
            near = set(np.argsort(-similar[u])[:top].tolist())
        else:
            near = {v for v in range(count) if similar[u, v] > threshold * similar.mean()}
        if not distance or not near:
            near.add(u)
        weights[u, sorted(near)] = 1.0 / len(near)
    return np.linalg.matrix_power(weights, layers)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"threshold": 1.1},
        {"neighbours": 2},
        {"layers": 2},
        {"similarity": "distance"},
        {"similarity": "distance", "neighbours": 1},
    ],
)
def test_the_graph_is_the_calculation_by_hand(settings: dict[str, Any]) -> None:
    """Two rounds: users 3, 0 and 5, then 0 and 4; the tables of 3 and 5 stay in the graph."""
    algorithm = algorithm_of(**settings)
    server = algorithm.init_server()
    initial = server.shared["items"].numpy().copy()
    changes = numbers(5, ITEMS, SIZE, step=9, scale=2.0)
    changes[:, 3] = 0.0  # an item that nobody touches
    tables: dict[int, Array] = {}
    rounds = [{3: changes[0], 0: changes[1], 5: changes[2]}, {4: changes[3], 0: changes[4]}]
    for number, sent in enumerate(rounds, start=1):
        items = server.shared["items"].numpy().copy()
        tables |= {user: items + change for user, change in sent.items()}
        updates = {user: change_of(change) for user, change in sent.items()}
        algorithm.aggregate(server, updates, number)
        members = sorted(tables)
        stacked = np.stack([tables[user] for user in members])
        more = {"threshold": 1.0, "neighbours": 0, "layers": 1, "similarity": "cosine", **settings}
        distance = more.pop("similarity") == "distance"
        weights = graph(stacked, more["threshold"], more["neighbours"], more["layers"], distance)
        mixed = np.einsum("uv,vid->uid", weights, stacked)
        same(server.shared["items"], mixed.mean(0))
        download = algorithm.download(server, torch.tensor([0, 1, 3]))
        assert download.which is not None
        assert download.which.tolist() == [0, -1, 1]
        same(download.addressed["neighbours"], mixed[[members.index(0), members.index(3)]])
    # What nobody touched stays bit for bit, however often it is averaged.
    assert (server.shared["items"].numpy()[3] == initial[3]).all()


@pytest.mark.parametrize(
    ("settings", "neighbours"),
    [
        ({}, [[0, 1], [0, 1], [2]]),  # those above 0.644
        ({"threshold": 0.9}, [[0, 1], [0, 1, 2], [1, 2]]),  # above 0.58
        ({"threshold": 1.6}, [[0], [1], [2]]),  # nobody is above 1.03, oneself neither
        ({"neighbours": 2}, [[0, 1], [0, 1], [1, 2]]),
        ({"similarity": "distance"}, [[2], [2], [0, 1]]),  # above 0.356
        ({"similarity": "distance", "threshold": 2.5}, [[2], [1], [0]]),  # above 0.89
    ],
)
def test_users_are_neighbours_of_themselves(
    settings: dict[str, Any], neighbours: list[list[int]]
) -> None:
    """Cosines of 0.8, 0.6 and 0; with three of 1 their mean is 0.644, of the distances 0.356.

    By distance it is those who have no other neighbour.
    """
    algorithm = algorithm_of(**settings)
    server = algorithm.init_server()
    tables = np.zeros((3, ITEMS, SIZE))
    tables[:, 0, :2] = [[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]
    initial = server.shared["items"].numpy().copy()
    updates = {user: change_of(table - initial) for user, table in enumerate(tables)}
    algorithm.aggregate(server, updates, 1)
    found = algorithm.download(server, torch.arange(3)).addressed["neighbours"]
    same(found, np.stack([tables[near].mean(0) for near in neighbours]))
