"""GPFedRec, CoFedRec and PerFedRec against plain numpy: a client's round, the server's step.

As in ``test_golden.py``: no autograd and no torch in the calculation by hand, samples one by one,
and so few unseen items that the draw of negatives leaves no choice. With more samples than a
minibatch holds that choice would matter, so minibatches here hold all.
"""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fedrecgel.common.algorithms.base import Algorithm, Download, ServerState
from fedrecgel.common.algorithms.cofedrec import contrastive_loss, elbow
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.hashing import integers, mix, user_keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.kmeans import kmeans
from fedrecgel.common.state import Update

Array = NDArray[np.float64]
TRAIN = [[0, 1, 1], [2, 1], [0, 2, 2]]
UNSEEN = [[2, 3], [0, 3], [1, 3]]
ITEMS, SIZE = 4, 4


def sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def loss_of(logit: float, label: float) -> float:
    return math.log1p(math.exp(logit)) - label * logit


def numbers(*shape: int, step: int, scale: float = 0.8) -> Array:
    """A fixed table without a generator."""
    count = math.prod(shape)
    return (scale * ((np.arange(1, count + 1) * step) % 41 - 20.0) / 20.0).reshape(shape)


def samples_of(user: int) -> list[tuple[int, float]]:
    return [(item, 1.0) for item in TRAIN[user]] + [
        (item, 0.0) for _ in TRAIN[user] for item in UNSEEN[user]
    ]


def interactions(users: list[int]) -> Interactions:
    rows = [TRAIN[user] for user in users]
    offsets = np.cumsum([0, *map(len, rows)])
    keys = user_keys(["a", "b", "c"])[users]
    return Interactions(np.concatenate(rows), offsets, keys, ITEMS)


def algorithm_of(name: str, **settings: Any) -> Any:
    more = {"embedding_dim": SIZE, "dtype": "float64", "num_negatives": 2, **settings}
    return make_algorithm(make_config(name, more), ITEMS)


def same(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(found), expected, rtol=0, atol=1e-10)


def whole(update: Update, name: str, size: int = SIZE) -> Array:
    """The rows of an update put into a table of zeros."""
    table = np.zeros((ITEMS, size))
    index, rows = update.rows[name]
    table[index.numpy()] = rows.numpy()
    return table


def change_of(table: Array) -> Update:
    """What a user sends whose table changed so."""
    index = np.flatnonzero(table.any(1))
    rows = (torch.from_numpy(index), torch.from_numpy(table[index]))
    return Update({"items": rows}, {}, 1, 0.5, len(index))


# --- GPFedRec ------------------------------------------------------------------------------------

Network = list[tuple[Array, Array]]


def mlp(user: Array, row: Array, network: Network) -> tuple[float, list[Array]]:
    """Logit of one item, and the input of each layer."""
    inputs = [np.concatenate([user, row])]
    for weight, bias in network[:-1]:
        inputs.append(np.maximum(weight @ inputs[-1] + bias, 0.0))
    weight, bias = network[-1]
    return float((weight @ inputs[-1] + bias)[0]), inputs


def mlp_backward(inputs: list[Array], network: Network, slope: float) -> tuple[Network, Array]:
    """Gradients by the network, and by [user | row], of slope * logit."""
    found: Network = []
    back = np.array([slope])
    for place in reversed(range(len(network))):
        if place < len(network) - 1:
            back = back * (inputs[place + 1] > 0)
        found.insert(0, (np.outer(back, inputs[place]), back))
        back = network[place][0].T @ back
    return found, back


def gpfedrec_round(
    table: Array,
    goal: Array | None,
    user: Array,
    network: Network,
    samples: list[tuple[int, float]],
    rates: dict[str, float],
) -> tuple[Array, Array, Network, float]:
    loss, n = 0.0, len(samples)
    by_table, by_user = np.zeros_like(table), np.zeros_like(user)
    by_network = [(np.zeros_like(w), np.zeros_like(b)) for w, b in network]
    for item, label in samples:
        logit, inputs = mlp(user, table[item], network)
        loss += loss_of(logit, label) / n
        parts, back = mlp_backward(inputs, network, (sigmoid(logit) - label) / n)
        by_user += back[:SIZE]
        by_table[item] += back[SIZE:]
        by_network = [(a + c, b + d) for (a, b), (c, d) in zip(by_network, parts, strict=True)]
    new = table - rates["items"] * by_table
    if goal is not None:
        new -= rates["pull"] * (table - goal)
    lr = rates["network"]
    stepped = [(w - lr * a, b - lr * c) for (w, b), (a, c) in zip(network, by_network, strict=True)]
    return new, user - rates["user"] * by_user, stepped, loss


@pytest.mark.parametrize("epochs", [1, 3])
@pytest.mark.parametrize("pulled", [False, True])
def test_a_gpfedrec_round_is_the_calculation_by_hand(pulled: bool, epochs: int) -> None:
    rates = {"items": 0.05 * 64, "pull": 0.2, "network": 0.3, "user": 0.7}
    settings = {"item_lr": 0.05, "batch_size": 64, "pull": 0.2, "local_lr": 0.3, "user_lr": 0.7}
    algorithm = algorithm_of("gpfedrec", local_epochs=epochs, **settings)
    items, goals = numbers(ITEMS, SIZE, step=7), numbers(3, ITEMS, SIZE, step=5)
    private = algorithm.init_private(user_keys(["a", "b", "c"]))
    shapes = [private[name].shape[1:] for name in algorithm.mlp.names]
    for place, (name, shape) in enumerate(zip(algorithm.mlp.names, shapes, strict=True)):
        values = numbers(3, *shape, step=3 + 2 * place)
        private[name] = torch.from_numpy(values)
    private["user"] = torch.from_numpy(numbers(3, SIZE, step=11))
    own = {"neighbours": torch.from_numpy(goals)} if pulled else {}
    download = Download({"items": torch.from_numpy(items)}, own)
    updates, state = algorithm.update_users(download, private, interactions([0, 1, 2]), 1)
    for who in range(3):
        user, table = private["user"][who].numpy(), items
        network = [
            (private[f"mlp.{i}.weight"][who].numpy(), private[f"mlp.{i}.bias"][who, 0].numpy())
            for i in range(4)
        ]
        losses = []
        for _ in range(epochs):
            goal = goals[who] if pulled else None
            table, user, network, loss = gpfedrec_round(
                table, goal, user, network, samples_of(who), rates
            )
            losses.append(loss)
        same(updates[who].loss, np.mean(losses))
        same(whole(updates[who], "items"), table - items)
        same(state["user"][who], user)
        for layer, (weight, bias) in enumerate(network):
            same(state[f"mlp.{layer}.weight"][who], weight)
            same(state[f"mlp.{layer}.bias"][who, 0], bias)
        same(state["scores"][who], [mlp(user, row, network)[0] for row in table])


def gpfedrec_server(
    tables: Array, threshold: float, top: int, layers: int, distance: bool
) -> Array:
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
def test_gpfedrecs_graph_is_the_calculation_by_hand(settings: dict[str, Any]) -> None:
    """Two rounds: users 3, 0 and 5, then 0 and 4; the tables of 3 and 5 stay in the graph."""
    algorithm = algorithm_of("gpfedrec", **settings)
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
        weights = gpfedrec_server(
            stacked,
            more["threshold"],
            more["neighbours"],
            more["layers"],
            more["similarity"] == "distance",
        )
        mixed = np.einsum("uv,vid->uid", weights, stacked)
        same(server.shared["items"], mixed.mean(0))
        download = algorithm.download(server, torch.tensor([0, 1, 3]))
        assert download.which is not None
        assert download.which.tolist() == [0, -1, 1]
        same(download.addressed["neighbours"], mixed[[members.index(0), members.index(3)]])
    # What nobody touched stays bit for bit, however often it is averaged.
    assert (server.shared["items"].numpy()[3] == initial[3]).all()


# --- CoFedRec ------------------------------------------------------------------------------------


def contrast_by_hand(rows: Array, labels: Array, tau: float) -> float:
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


def slope_of(rows: Array, labels: Array, tau: float) -> Array:
    """Derivative of `contrast_by_hand` by central differences."""
    found = np.zeros_like(rows)
    for place in np.ndindex(*rows.shape):
        step = np.zeros_like(rows)
        step[place] = 1e-5
        high = contrast_by_hand(rows + step, labels, tau)
        found[place] = (high - contrast_by_hand(rows - step, labels, tau)) / 2e-5
    return found


def test_the_contrastive_loss_is_the_sum_by_hand() -> None:
    rows, labels = numbers(5, SIZE, step=7), np.array([0, 1, 0, 0, 2])
    together = torch.from_numpy(labels)
    same_cluster = (together == together[:, None]) & ~torch.eye(5, dtype=torch.bool)
    found = contrastive_loss(torch.from_numpy(np.stack([rows, 2 * rows])), same_cluster, 0.3)
    same(found, 2 * contrast_by_hand(rows, labels, 0.3))  # lengths do not matter


@pytest.mark.parametrize("clustered", [False, True])
def test_a_cofedrec_round_is_the_calculation_by_hand(clustered: bool) -> None:
    """User b has a group's table, the others their own; labels there are from round 2 on."""
    settings = {"item_lr": 0.05, "batch_size": 64, "local_lr": 0.3, "temperature": 0.4}
    algorithm = algorithm_of("cofedrec", contrast=0.1, contrast_items=0, **settings)
    initial = algorithm.initial.numpy()
    labels = np.array([0, 1, 0, 1]) if clustered else np.full(ITEMS, -1)
    tables, group = numbers(3, ITEMS, SIZE, step=5), numbers(1, ITEMS, SIZE, step=13)
    private = {
        "weight": torch.from_numpy(numbers(3, SIZE, step=3)),
        "bias": torch.from_numpy(numbers(3, 1, step=17)),
        "table": torch.from_numpy(tables),
    }
    shared = {"labels": torch.from_numpy(labels)}
    own = {"group": torch.from_numpy(group)}
    download = Download(shared, own, torch.tensor([-1, 0, -1]))
    updates, state = algorithm.update_users(download, private, interactions([0, 1, 2]), 2)
    for who in range(3):
        change = (group[0] if who == 1 else tables[who]).copy()
        weight, bias = private["weight"][who].numpy(), float(private["bias"][who, 0])
        samples = samples_of(who)
        losses = []
        for _ in range(2):
            rows, n = initial + change, len(samples)
            slopes = [(sigmoid(rows[i] @ weight + bias) - y) / n for i, y in samples]
            losses.append(sum(loss_of(rows[i] @ weight + bias, y) / n for i, y in samples))
            weight = weight - 0.3 * sum(
                s * rows[i] for s, (i, _) in zip(slopes, samples, strict=True)
            )
            bias -= 0.3 * sum(slopes)
            for item, label in samples:
                slope = (sigmoid(rows[item] @ weight + bias) - label) / n
                change[item] -= 0.05 * 64 * slope * weight
            if clustered:
                change -= 0.1 * slope_of(rows, labels, 0.4)
        np.testing.assert_allclose(state["table"][who], change, rtol=0, atol=1e-7)
        np.testing.assert_allclose(state["weight"][who], weight, rtol=0, atol=1e-7)
        np.testing.assert_allclose(state["bias"][who], [bias], rtol=0, atol=1e-7)
        np.testing.assert_allclose(updates[who].loss, np.mean(losses), rtol=0, atol=1e-7)
        assert torch.equal(torch.from_numpy(whole(updates[who], "table")), state["table"][who])


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


def test_cofedrecs_server_gives_a_group_its_mean_table() -> None:
    """Two kinds of users; the anchor's kind, down to the elbow, gets one table."""
    algorithm = algorithm_of("cofedrec", clusters=2)
    server = algorithm.init_server()
    initial = algorithm.initial.numpy()
    kinds = numbers(2, ITEMS, SIZE, step=7, scale=30.0)
    sent = {u: kinds[u % 2] + numbers(ITEMS, SIZE, step=3 + 2 * u, scale=0.1) for u in range(6)}
    updates = {}
    for user, table in sent.items():
        rows = (torch.arange(ITEMS), torch.from_numpy(table))
        updates[user] = Update({"table": rows}, {}, 1, 0.5, ITEMS)
    algorithm.aggregate(server, updates, 1)

    mean = initial + np.mean(list(sent.values()), axis=0)
    labels = kmeans(torch.from_numpy(mean), 2, 0, 1).numpy()
    assert server.shared["labels"].tolist() == labels.tolist()
    anchor = int(integers(mix("anchor", 0, 1), 6))
    cluster = np.unique(labels)[int(integers(mix("cluster", 0, 1), len(np.unique(labels))))]
    similar = []
    for user in range(6):
        pairs = [
            (initial[i] + sent[anchor][i], initial[i] + sent[user][i])
            for i in np.flatnonzero(labels == cluster)
        ]
        similar.append(sum(a @ b / math.sqrt((a @ a) * (b @ b)) for a, b in pairs))
    order = np.argsort(-np.array(similar), kind="stable")
    ranked = np.array(similar)[order]
    chord = ranked[0] + (ranked[-1] - ranked[0]) * np.arange(6) / 5
    group = sorted(order[: int(np.argmax(np.abs(ranked - chord))) + 1].tolist())
    assert group == [u for u in range(6) if u % 2 == anchor % 2]

    download = algorithm.download(server, torch.arange(7))
    assert download.which is not None
    assert [u for u, row in enumerate(download.which.tolist()) if row == 0] == group
    assert len(download.addressed["group"]) == 1
    same(download.addressed["group"][0], np.mean([sent[u] for u in group], axis=0))
    # Who trains again has a table of their own; the group's is dropped with its last member.
    algorithm.aggregate(server, {u: updates[u] for u in group}, 2)
    assert "1" not in server.addressed


# --- PerFedRec -----------------------------------------------------------------------------------


def passed(user: Array, rows: Array, star: Array, hops: int) -> tuple[Array, Array]:
    users, items = [user], [rows]
    for _ in range(hops):
        u, q = users[-1], items[-1]
        users.append((u + q[star].sum(0)) / (star.sum() + 1))
        items.append(np.where(star[:, None], (q + u) / 2, q))
    return np.mean(users, axis=0), np.mean(items, axis=0)


def perfedrec_loss(who: int, hops: int, decay: float, user: Array, rows: Array) -> float:
    star = np.isin(np.arange(ITEMS), TRAIN[who])
    u, q = passed(user, rows, star, hops)
    pairs = [(i, j) for i in TRAIN[who] for j in UNSEEN[who]]
    loss = 0.0
    for i, j in pairs:
        loss += math.log1p(math.exp(-(u @ q[i] - u @ q[j])))
        loss += decay / 2 * (u @ u + q[i] @ q[i] + q[j] @ q[j])
    return loss / len(pairs)


def differences(f: Any, values: Array) -> Array:
    found = np.zeros_like(values)
    for place in np.ndindex(*values.shape):
        step = np.zeros_like(values)
        step[place] = 1e-5
        found[place] = (f(values + step) - f(values - step)) / 2e-5
    return found


@pytest.mark.parametrize("hops", [0, 1, 3])
def test_a_perfedrec_round_is_the_calculation_by_hand(hops: int) -> None:
    """User b has a cluster's table; two steps of Adam; gradients by central differences."""
    backbone = {"backbone": "lightgcn", "hops": hops} if hops else {"backbone": "mf"}
    settings = {"local_lr": 0.1, "local_steps": 2, "weight_decay": 0.1, **backbone}
    algorithm = algorithm_of("perfedrec", **settings)
    items, cluster = numbers(ITEMS, SIZE, step=7), numbers(1, ITEMS, SIZE, step=5)
    private = algorithm.init_private(user_keys(["a", "b", "c"]))
    private["user"] = torch.from_numpy(numbers(3, SIZE, step=11))
    download = Download(
        {"items": torch.from_numpy(items)},
        {"cluster": torch.from_numpy(cluster)},
        torch.tensor([-1, 0, -1]),
    )
    updates, state = algorithm.update_users(download, private, interactions([0, 1, 2]), 1)
    for who in range(3):
        start = cluster[0] if who == 1 else items
        values = [private["user"][who].numpy(), start.copy()]
        moments = [(np.zeros_like(v), np.zeros_like(v)) for v in values]
        loss = functools.partial(perfedrec_loss, who, hops, 0.1)
        first = loss(*values)
        for step in (1, 2):
            user, rows = values
            gradients = [
                differences(functools.partial(loss, rows=rows), user),
                differences(functools.partial(loss, user), rows),
            ]
            for place, gradient in enumerate(gradients):
                mean, square = moments[place]
                mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
                moments[place] = mean, square
                spread = np.sqrt(square / (1 - 0.999**step)) + 1e-8
                values[place] = values[place] - 0.1 * mean / (1 - 0.9**step) / spread
        touched = sorted(set(TRAIN[who]) | set(UNSEEN[who]))
        assert updates[who].rows["items"][0].tolist() == touched
        np.testing.assert_allclose(updates[who].loss, first, atol=1e-9)
        np.testing.assert_allclose(whole(updates[who], "items"), values[1] - start, atol=1e-5)
        np.testing.assert_allclose(updates[who].dense["user"], values[0], atol=1e-5)
        np.testing.assert_allclose(state["user"][who], values[0], atol=1e-5)
        np.testing.assert_allclose(state["scores"][who], values[1] @ values[0], atol=1e-5)


def user_update(change: Array, user: Array) -> Update:
    update = change_of(change)
    return Update(update.rows, {"user": torch.from_numpy(user)}, 1, 0.5, update.touched)


def test_perfedrecs_server_is_the_calculation_by_hand() -> None:
    """Users 0, 2 are of one kind and 1, 3 of the other; the second round has 0, 1 and new 5."""
    algorithm = algorithm_of("perfedrec", clusters=2)
    server = algorithm.init_server()
    items = server.shared["items"].numpy().copy()
    changes = numbers(7, ITEMS, SIZE, step=9)
    rows = {u: np.full(SIZE, 1.0 if u % 2 else -1.0) + 0.01 * u for u in (0, 1, 2, 3)}
    first = {u: user_update(changes[u], rows[u]) for u in (0, 1, 2, 3)}
    algorithm.aggregate(server, first, 1)
    same(server.shared["items"], items + changes[:4].mean(0))
    labels = dict(zip([0, 1, 2, 3], server.auxiliary["labels"].tolist(), strict=True))
    assert labels[0] == labels[2] != labels[1] == labels[3]
    models = {u: server.addressed[str(labels[u])]["cluster"].numpy().copy() for u in labels}
    same(models[0], items + changes[[0, 2]].mean(0))
    same(models[1], items + changes[[1, 3]].mean(0))

    begun = server.shared["items"].numpy().copy()
    second = {
        0: user_update(changes[4], rows[0] + 0.1),
        1: user_update(changes[5], rows[1] + 0.1),
        5: user_update(changes[6], np.full(SIZE, 1.2)),
    }
    algorithm.aggregate(server, second, 2)
    tables = {0: models[0] + changes[4], 1: models[1] + changes[5], 5: begun + changes[6]}
    same(server.shared["items"], np.mean(list(tables.values()), axis=0))
    labels = dict(zip([0, 1, 2, 3, 5], server.auxiliary["labels"].tolist(), strict=True))
    assert labels[0] == labels[2] != labels[1] == labels[3] == labels[5]
    same(server.addressed[str(labels[0])]["cluster"], tables[0])
    same(server.addressed[str(labels[1])]["cluster"], (tables[1] + tables[5]) / 2)

    # Nobody of the first kind: their cluster's model is the global one.
    algorithm.aggregate(server, {1: second[1]}, 3)
    labels = dict(zip([0, 1, 2, 3, 5], server.auxiliary["labels"].tolist(), strict=True))
    same(server.addressed[str(labels[0])]["cluster"], server.shared["items"].numpy())


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.5, 2.0, 0.0)])
def test_perfedrecs_score_blends_the_models_that_a_user_has(
    weights: tuple[float, float, float],
) -> None:
    """a: all three; b: global and local; c: the global one alone."""
    names = ("global_weight", "cluster_weight", "local_weight")
    algorithm = algorithm_of("perfedrec", **dict(zip(names, weights, strict=True)))
    items, cluster = numbers(ITEMS, SIZE, step=7), numbers(1, ITEMS, SIZE, step=5)
    users, local = numbers(3, SIZE, step=11), numbers(3, ITEMS, step=13)
    private = {
        "user": torch.from_numpy(users),
        "scores": torch.from_numpy(local * np.array([[1.0], [1.0], [0.0]])),
        "rounds": torch.tensor([2, 1, 0]),
    }
    own = {"cluster": torch.from_numpy(cluster)}
    download = Download({"items": torch.from_numpy(items)}, own, torch.tensor([0, -1, -1]))
    found = algorithm.personal_view(download, private).catalogue(torch.arange(3))
    scores = items @ users[0], cluster[0] @ users[0], local[0]
    same(found[0], np.average(scores, axis=0, weights=weights))
    same(found[1], np.average([items @ users[1], local[1]], axis=0, weights=weights[::2]))
    same(found[2], items @ users[2])


def test_half_of_perfedrecs_cohort_follows_the_clusters() -> None:
    """Of 200 users 150 are in one cluster, 40 in another and 10 in a third."""
    algorithm: Algorithm[Any] = algorithm_of("perfedrec", clusters=3)
    server = ServerState({})
    labels = torch.tensor([0] * 150 + [1] * 40 + [2] * 10)
    server.auxiliary = {"members": torch.arange(200), "labels": labels}
    counts = np.zeros(200)
    for round in range(1, 301):
        chosen = algorithm.cohort(server, np.arange(200), 20, round)
        assert len(set(chosen.tolist())) == 20
        assert chosen.tolist() == sorted(chosen.tolist())
        assert chosen.tolist() == algorithm.cohort(server, np.arange(200), 20, round).tolist()
        counts[chosen] += 1
    often = [counts[labels.numpy() == label].mean() / 300 for label in range(3)]
    assert often[0] > often[1] > often[2]
    assert abs(often[2] - 0.05) < 0.02  # all but only in the uniform half


def test_members_of_one_cluster_get_its_model_once() -> None:
    algorithm = algorithm_of("perfedrec")
    server = algorithm.init_server()
    server.auxiliary = {"members": torch.tensor([0, 2, 5]), "labels": torch.tensor([1, 0, 1])}
    server.addressed = {
        str(label): {"cluster": torch.full((ITEMS, SIZE), float(label))} for label in range(2)
    }
    download = algorithm.download(server, torch.tensor([0, 1, 5]))
    assert download.which is not None
    assert download.which.tolist() == [0, -1, 0]
    assert download.addressed["cluster"].shape == (1, ITEMS, SIZE)
    assert float(download.addressed["cluster"].mean()) == 1.0
