"""PerFedRec against plain numpy: a client's round, the server's step, the score."""

import functools
import math
from typing import Any

import numpy as np
import pytest
import torch
from by_hand import (
    ITEMS,
    KEYS,
    SETTINGS,
    TRAIN,
    Array,
    change_of,
    data,
    negatives,
    numbers,
    same,
    slopes,
    touched,
    whole,
)

from fedrecgel.common.algorithms.base import Algorithm, Download, ServerState
from fedrecgel.common.algorithms.registry import make_algorithm, make_config

SIZE = 4


def algorithm_of(**settings: Any) -> Any:
    config = make_config("perfedrec", {**SETTINGS, "embedding_dim": SIZE, **settings})
    return make_algorithm(config, ITEMS)


# --- client --------------------------------------------------------------------------------------


def passed(user: Array, rows: Array, star: Array, hops: int) -> tuple[Array, Array]:
    users, items = [user], [rows]
    for _ in range(hops):
        u, q = users[-1], items[-1]
        users.append((u + q[star].sum(0)) / (star.sum() + 1))
        items.append(np.where(star[:, None], (q + u) / 2, q))
    return np.mean(users, axis=0), np.mean(items, axis=0)


def loss_of(
    who: int, unseen: list[list[int]], hops: int, user: Array, rows: Array, decay: float = 0.1
) -> float:
    star = np.isin(np.arange(ITEMS), TRAIN[who])
    u, q = passed(user, rows, star, hops)
    losses = []
    for i, others in zip(TRAIN[who], unseen, strict=True):
        for j in others:
            penalty = decay / 2 * (u @ u + q[i] @ q[i] + q[j] @ q[j])
            losses.append(math.log1p(math.exp(-(u @ q[i] - u @ q[j]))) + penalty)
    return float(np.mean(losses))


@pytest.mark.parametrize(
    ("hops", "more"), [(0, {}), (1, {}), (3, {}), (3, {"block_size": 20}), (3, {"engine": "loop"})]
)
def test_a_round_is_the_calculation_by_hand(hops: int, more: dict[str, Any]) -> None:
    """User b has a cluster's table; two steps of Adam; gradients by central differences."""
    backbone = {"backbone": "lightgcn", "hops": hops} if hops else {"backbone": "mf"}
    settings = {"local_lr": 0.1, "local_steps": 2, "weight_decay": 0.1, **more}
    algorithm = algorithm_of(**settings, **backbone)
    items, cluster = numbers(ITEMS, SIZE, step=7), numbers(1, ITEMS, SIZE, step=5)
    private = algorithm.init_private(KEYS)
    private["user"] = torch.from_numpy(numbers(3, SIZE, step=11))
    own = {"cluster": torch.from_numpy(cluster)}
    download = Download({"items": torch.from_numpy(items)}, own, torch.tensor([-1, 0, -1]))
    updates, state = algorithm.update_users(download, private, data(), 1)
    for who in range(3):
        start = cluster[0] if who == 1 else items
        values = [private["user"][who].numpy(), start.copy()]
        moments = [(np.zeros_like(v), np.zeros_like(v)) for v in values]
        loss = functools.partial(loss_of, who, negatives(who, 1), hops)
        first = loss(*values)
        for step in (1, 2):
            user, rows = values
            gradients = [
                slopes(functools.partial(loss, rows=rows), user),
                slopes(functools.partial(loss, user), rows),
            ]
            for place, gradient in enumerate(gradients):
                mean, square = moments[place]
                mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
                moments[place] = mean, square
                spread = np.sqrt(square / (1 - 0.999**step)) + 1e-8
                values[place] = values[place] - 0.1 * mean / (1 - 0.9**step) / spread
        assert updates[who].rows["items"][0].tolist() == touched(who, 1)
        same(updates[who].loss, first, atol=1e-9)
        same(whole(updates[who], "items"), values[1] - start, atol=1e-5)
        same(updates[who].dense["user"], values[0], atol=1e-5)
        same(state["user"][who], values[0], atol=1e-5)
        same(state["scores"][who], values[1] @ values[0], atol=1e-5)


# --- server --------------------------------------------------------------------------------------


def test_perfedrecs_server_is_the_calculation_by_hand() -> None:
    """Users 0, 2 are of one kind and 1, 3 of the other; the second round has 0, 1 and new 5."""
    algorithm = algorithm_of(clusters=2)
    server = algorithm.init_server()
    items = server.shared["items"].numpy().copy()
    changes = numbers(7, ITEMS, SIZE, step=9)
    rows = {u: np.full(SIZE, 1.0 if u % 2 else -1.0) + 0.01 * u for u in (0, 1, 2, 3)}
    first = {u: change_of(changes[u], user=rows[u]) for u in (0, 1, 2, 3)}
    algorithm.aggregate(server, first, 1)
    same(server.shared["items"], items + changes[:4].mean(0))
    labels = dict(zip([0, 1, 2, 3], server.auxiliary["labels"].tolist(), strict=True))
    assert labels[0] == labels[2] != labels[1] == labels[3]
    models = {u: server.addressed[str(labels[u])]["cluster"].numpy().copy() for u in labels}
    same(models[0], items + changes[[0, 2]].mean(0))
    same(models[1], items + changes[[1, 3]].mean(0))

    begun = server.shared["items"].numpy().copy()
    second = {
        0: change_of(changes[4], user=rows[0] + 0.1),
        1: change_of(changes[5], user=rows[1] + 0.1),
        5: change_of(changes[6], user=np.full(SIZE, 1.2)),
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
    alone = (tables[1] + tables[5]) / 2 + changes[5]
    assert labels[0] == labels[2] != labels[1]
    for table in (server.shared["items"], *(s["cluster"] for s in server.addressed.values())):
        same(table, alone)


@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.5, 2.0, 0.0)])
def test_perfedrecs_score_blends_the_models_that_a_user_has(
    weights: tuple[float, float, float],
) -> None:
    """a: all three; b: global and local; c: the global one alone."""
    names = ("global_weight", "cluster_weight", "local_weight")
    algorithm = algorithm_of(**dict(zip(names, weights, strict=True)))
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
    algorithm: Algorithm[Any] = algorithm_of(clusters=3)
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


def test_who_has_no_cluster_counts_in_none() -> None:
    """10 users of cluster 0, 60 of cluster 1, and 130 who took part since the last clustering."""
    algorithm: Algorithm[Any] = algorithm_of(clusters=2, cluster_every=5)
    server = ServerState({})
    labels = torch.tensor([0] * 10 + [1] * 60 + [-1] * 130)
    server.auxiliary = {"members": torch.arange(200), "labels": labels}
    counts = np.zeros(200)
    for round in range(1, 301):
        counts[algorithm.cohort(server, np.arange(200), 20, round)] += 1
    often = {label: counts[labels.numpy() == label].mean() for label in (0, 1, -1)}
    # Weights 10, 60 and the average, 35.
    assert often[1] > often[-1] > often[0]


def test_members_of_one_cluster_get_its_model_once() -> None:
    algorithm = algorithm_of()
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
