"""PerFedRec: users in clusters, each user scored by a global, a cluster's and a local model.

Luo, Xiao, Song: "Personalized Federated Recommendation via Joint Representation Learning, User
Clustering, and Model Adaptation", CIKM 2022, arXiv 2208.09375.

A client has a user row u and a copy of an item table: its cluster's, or the global one before it
has a cluster. On the star of the user and their items D, n of them, rows are passed along ``hops``
times and averaged over hops 0 to ``hops`` (LightGCN, rows divided by degrees, self-loops):

    u <- (u + sum over D of q_i) / (n + 1)      q_i <- (q_i + u) / 2 for i in D, else q_i

``backbone=mf`` leaves that out. The star alone tells a user's items from all others, so with it the
loss falls while rows learn little of items outside: ``mf`` ranks unseen items better (300 invented
users, 40 rounds of 30 %: HR@10 0.21 against 0.12). For pairs of an item and one that the user does
not have, the loss
-log sigma(u.q_i - u.q_j) (BPR) gets ``local-steps`` full-batch steps of Adam with fresh moments.

The user sends their row u and the rows of the table that they changed: the server must compare the
users, so **the user row leaves the device**. The server:

    Q = mean of the round's tables
    labels = K-means of the last row of every user who took part, every ``cluster-every`` rounds
    Q_c = mean of the round's tables of users in cluster c; Q where there are none
    half of the next cohort at random, half with a chance that grows with their cluster's size
    score = global-weight u.Q_i + cluster-weight u.Q_c,i + local-weight u.(own table of the last
            round)_i, over those there are

The published code passes each hop along from hop 0 (so all are the same), lets the users share one
Adam, keeps the other users in the star, and takes its maxima on the test items.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from fedrecgel.common.algorithms.base import Download, ServerState
from fedrecgel.common.algorithms.delta import TableConfig
from fedrecgel.common.algorithms.per_user import PerUserAlgorithm
from fedrecgel.common.algorithms.view import ScoresView
from fedrecgel.common.config import Config, Scalar, setting
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.hashing import Keys, mix, smallest, uniform, uniform_cohort
from fedrecgel.common.initial import normal_users
from fedrecgel.common.interactions import Interactions, Ints
from fedrecgel.common.kmeans import kmeans
from fedrecgel.common.minibatches import Group, Minibatches
from fedrecgel.common.optimizers import adam_state, adam_step
from fedrecgel.common.samples import draw_negatives
from fedrecgel.common.state import State, Tensors, Update, move, resolve_device, take_users


@dataclass(frozen=True, kw_only=True)
class PerFedRecConfig(TableConfig):
    """Settings of PerFedRec."""

    algorithm: ClassVar[str] = "perfedrec"

    embedding_dim: int = setting(64, "size of the embeddings", low=1)
    num_negatives: int = setting(
        1, "negatives drawn for each positive, anew each round", low=0, high=1000
    )
    backbone: str = setting(
        "lightgcn",
        "rows passed along the user's star, or left as they are",
        choices=("lightgcn", "mf"),
    )
    hops: int = setting(3, "how often rows are passed along", low=1)
    local_lr: float = setting(0.05, "learning rate of the local Adam", low=0)
    local_steps: int = setting(1, "full-batch local steps a round", low=1)
    weight_decay: float = setting(1e-5, "L2 penalty on the rows of each pair", low=0)
    clusters: int = setting(5, "clusters of users", low=1)
    cluster_every: int = setting(1, "rounds between two clusterings", low=1)
    cohort_by: str = setting(
        "clusters",
        "half of a cohort with a chance that grows with the size of their cluster; or all uniform",
        choices=("clusters", "uniform"),
    )
    global_weight: float = setting(1.0, "share of the global model in the score", low=0)
    cluster_weight: float = setting(1.0, "share of the cluster's model in the score", low=0)
    local_weight: float = setting(1.0, "share of the local model in the score", low=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.global_weight or self.cluster_weight or self.local_weight):
            raise ConfigError(
                "global-weight, cluster-weight and local-weight are all 0, which scores every item "
                "alike; raise one of them"
            )


class PerFedRec(PerUserAlgorithm[PerFedRecConfig]):
    """Shared ``items`` (M, d); private ``scores`` (M,), ``rounds`` and the uploaded ``user`` (d,).

    ``scores`` are those of the local model after the user's last round, all that scoring needs of
    it; ``rounds`` counts how often they trained. Addressed is ``cluster`` (M, d).
    """

    name: ClassVar[str] = "perfedrec"
    config_class: ClassVar[type[Config]] = PerFedRecConfig
    citation: ClassVar[str] = (
        "Luo et al.: Personalized Federated Recommendation via Joint Representation Learning, User "
        "Clustering, and Model Adaptation, CIKM 2022, arXiv 2208.09375"
    )
    search: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "local_lr": (0.01, 0.05, 0.1),
        "local_steps": (1, 5, 20),
        "backbone": ("mf", "lightgcn"),
        "clusters": (5, 20),
        "local_weight": (0.0, 1.0),
    }
    scored_with: ClassVar[str] = "global, cluster's and own last model, blended"

    def __init__(self, config: PerFedRecConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        self.tensors = Tensors(
            shared=frozenset({"items"}),
            item_rows=frozenset({"items"}),
            private=frozenset({"user", "scores", "rounds"}),
            addressed=frozenset({"cluster"}),
            uploaded=frozenset({"user"}),
        )

    def init_server(self) -> ServerState:
        """See `Algorithm.init_server`."""
        return ServerState({"items": self.initial.clone()})

    def init_private(self, keys: Keys) -> State:
        """See `Algorithm.init_private`."""
        config = self.config
        user = normal_users(keys, config.embedding_dim, config.init_std, config.seed)
        scores = torch.zeros(len(keys), self.num_items, dtype=self.dtype)
        rounds = torch.zeros(len(keys), dtype=torch.int64)
        return {"user": user.to(self.dtype), "scores": scores, "rounds": rounds}

    @property
    def addressed_template(self) -> State:
        """See `Algorithm.addressed_template`."""
        return {"cluster": torch.zeros_like(self.initial)}

    # --- client ------------------------------------------------------------------------------

    @torch.no_grad()
    def block_updates(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[list[Update], State]:
        """See `Algorithm.block_updates`."""
        device = resolve_device(self.config.device)
        items = download.shared["items"].to(device)
        clusters = download.addressed.get("cluster", items[None][:0]).to(device)
        tables = torch.cat((clusters, items[None]))
        row = download.rows(data.num_users).to(device) % len(tables)  # -1: the global one, last
        pairs = _Pairs(data, self.config, round)
        result = {name: torch.empty_like(value) for name, value in private.items()}
        result["rounds"] = private["rounds"] + 1
        updates = [Update()] * data.num_users
        for group in pairs.batches.groups(self.config.block_size, self.dtype, device):
            users = torch.from_numpy(group.users)
            own = move(take_users(private, users), device)
            start = tables[row[users, None], group.items]
            user, rows, losses = self._tune(pairs, group, start, own["user"])
            for place, number in enumerate(group.users.tolist()):
                touched = group.items[place, group.valid[place]].cpu()
                change = (rows - start)[place, group.valid[place]].cpu()
                vector = user[place].cpu()
                found = Update({"items": (touched, change)}, {"user": vector}, 1)
                found.loss, found.touched = float(losses[place]), len(touched)
                updates[number] = found
                scores = tables[row[number]] @ user[place]
                scores[touched] = rows[place, group.valid[place]] @ user[place]
                result["user"][number] = vector
                result["scores"][number] = scores.cpu()
        return updates, result

    def _tune(
        self, pairs: "_Pairs", group: Group, start: Tensor, user: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Steps of Adam on user rows (U, d) and local rows (U, R + 1, d), and the first losses."""
        better, worse, weight, star = pairs.of(group)
        rows, losses = start, None
        moments = [adam_state(value.flatten(1)) for value in (user, start)]
        for _ in range(self.config.local_steps):
            with torch.enable_grad():
                leaves = user.detach().requires_grad_(), rows.detach().requires_grad_()
                found = self._losses(*self._passed(*leaves, star), better, worse, weight)
                gradients = torch.autograd.grad(found.sum(), leaves)
            losses = found.detach() if losses is None else losses
            stepped = []
            for place, (value, gradient) in enumerate(zip((user, rows), gradients, strict=True)):
                flat = (value.flatten(1), gradient.flatten(1), moments[place])
                new, moments[place] = adam_step(*flat, self.config.local_lr)
                stepped.append(new.view_as(value))
            user, rows = stepped
        assert losses is not None
        return user, rows, losses

    def _passed(self, user: Tensor, rows: Tensor, star: Tensor) -> tuple[Tensor, Tensor]:
        """Rows passed along the star ``star`` (U, R + 1) and averaged over the hops."""
        if self.config.backbone == "mf":
            return user, rows
        near, degree = star.unsqueeze(-1), star.sum(1, keepdim=True)
        layers = [(user, rows)]
        for _ in range(self.config.hops):
            u, q = layers[-1]
            passed = (u + (near * q).sum(1)) / (degree + 1.0)
            layers.append((passed, q + near * (u.unsqueeze(1) - q) / 2.0))
        users, items = zip(*layers, strict=True)
        return torch.stack(users).mean(0), torch.stack(items).mean(0)

    def _losses(
        self, user: Tensor, rows: Tensor, better: Tensor, worse: Tensor, weight: Tensor
    ) -> Tensor:
        """(U,) weighted BPR losses with the penalty; ``better`` and ``worse`` (U, P) are places."""
        first, second = (
            rows.gather(1, place.unsqueeze(-1).expand(-1, -1, rows.shape[2]))
            for place in (better, worse)
        )
        margin = torch.bmm(first - second, user.unsqueeze(-1)).squeeze(-1)
        squares = first.square().sum(-1) + second.square().sum(-1)
        squares = squares + user.square().sum(-1, keepdim=True)
        return (weight * (softplus(-margin) + self.config.weight_decay / 2.0 * squares)).sum(1)

    # --- server ------------------------------------------------------------------------------

    def aggregate(self, server: ServerState, updates: dict[int, Update], round: int) -> None:
        """Average the tables, cluster the users, average again by cluster."""
        users = torch.tensor(sorted(updates))
        before, parts = self._labels(server, users), [updates[int(user)] for user in users]
        old = torch.stack(
            [*(s["cluster"] for s in server.addressed.values()), server.shared["items"]]
        )
        names = {int(key): place for place, key in enumerate(server.addressed)}
        begun = torch.tensor([names.get(int(label), len(old) - 1) for label in before])
        state = server.auxiliary
        self._note_rows(state, users, torch.stack([part.dense["user"] for part in parts]))
        if round % self.config.cluster_every == 0 or "labels" not in state:
            seed = self.config.seed
            state["labels"] = kmeans(state["rows"], self.config.clusters, seed, round)
        labels = self._labels(server, users)
        items = _mean_table(old, begun, parts)
        server.shared["items"].copy_(items)
        server.addressed = {}
        for label in range(int(state["labels"].max()) + 1):
            inside = (labels == label).nonzero()[:, 0].tolist()
            table = _mean_table(old, begun[inside], [parts[i] for i in inside]) if inside else items
            server.addressed[str(label)] = {"cluster": table.clone()}

    def _note_rows(self, state: State, users: Tensor, rows: Tensor) -> None:
        """Keep the last row of every user; members stay in ascending order."""
        known = state.get("members", users[:0])
        members = torch.unique(torch.cat((known, users)))
        kept = rows.new_zeros((len(members), rows.shape[1]))
        labels = torch.full_like(members, -1)
        if len(known):
            place = torch.searchsorted(members, known)
            kept[place], labels[place] = state["rows"], state["labels"]
            state["labels"] = labels
        kept[torch.searchsorted(members, users)] = rows
        state.update(members=members, rows=kept)

    def _labels(self, server: ServerState, users: Tensor) -> Tensor:
        """(B,) cluster of each user, -1 where there is none."""
        state = server.auxiliary
        members = state.get("members", users[:0])
        labels, known = torch.full_like(users, -1), torch.isin(users, members)
        labels[known] = state.get("labels", members)[torch.searchsorted(members, users[known])]
        return labels

    def download(self, server: ServerState, users: Tensor) -> Download:
        """The global model, and the clusters' models of these users, each once."""
        labels = self._labels(server, users)
        needed, place = torch.unique(labels[labels >= 0], return_inverse=True)
        which = torch.full_like(users, -1)
        which[labels >= 0] = place
        if not len(needed):
            return Download(server.shared)
        tables = [server.addressed[str(label)]["cluster"] for label in needed.tolist()]
        return Download(server.shared, {"cluster": torch.stack(tables)}, which)

    def cohort(
        self, server: ServerState, users: Ints, size: int, round: int, attempt: int = 0
    ) -> Ints:
        """See `Algorithm.cohort`: half of them by the size of their cluster.

        Without replacement: the smallest of -log(uniform) / weight (Efraimidis, Spirakis, 2006).
        Who has no cluster weighs as a member of one of average size.
        """
        seed = self.config.seed
        if self.config.cohort_by == "uniform" or size >= len(users):
            return uniform_cohort(users, size, seed, round, attempt)
        first = uniform_cohort(users, size - size // 2, seed, round, attempt)
        rest = np.setdiff1d(users, first)
        labels = self._labels(server, torch.from_numpy(rest)).numpy()
        # Between two clusterings there are users who took part and have no cluster yet.
        everyone = server.auxiliary.get("labels", torch.zeros(0)).long()
        sizes = np.bincount(everyone[everyone >= 0])
        weight = np.where(labels < 0, max(1.0, sizes.sum() / max(1, len(sizes))), 1.0)
        weight[labels >= 0] = sizes[labels[labels >= 0]]
        draw = uniform(mix("cluster cohort", seed, round, attempt, rest))
        return np.union1d(first, smallest(rest, -np.log(draw) / weight, size // 2))

    def server_bytes(self, num_users: int) -> int:
        """A model for each cluster, and a row for each user."""
        size = self.config.embedding_dim * self.dtype.itemsize
        return size * (self.config.clusters * self.num_items + num_users)

    # --- scoring -----------------------------------------------------------------------------

    @torch.no_grad()
    def personal_view(self, download: Download, private: State) -> ScoresView:
        """See `Algorithm.personal_view`: the blend of the models that there are for a user."""
        config, user = self.config, private["user"]
        which, trained = download.rows(len(user)), private["rounds"] > 0
        scores = config.global_weight * (user @ download.shared["items"].T)
        total = torch.full_like(user[:, :1], config.global_weight)
        for row in torch.unique(which[which >= 0]).tolist():
            inside = (which == row).to(user.device)
            cluster = user[inside] @ download.addressed["cluster"][row].T
            scores[inside] += config.cluster_weight * cluster
            total[inside] += config.cluster_weight
        scores += config.local_weight * private["scores"]  # 0 for those who never trained
        total += config.local_weight * trained.unsqueeze(1)
        return ScoresView(scores / total.clamp(min=1e-30))


class _Pairs:
    """Pairs of a round: each of a user's interactions with its drawn negatives."""

    def __init__(self, data: Interactions, config: PerFedRecConfig, round: int) -> None:
        self._data = data
        self.batches = Minibatches(
            data,
            num_negatives=config.num_negatives,
            size=1 << 30,
            epochs=1,
            seed=config.seed,
            round=round,
        )
        self._negatives = draw_negatives(data, config.num_negatives, config.seed, round)
        self._negatives = self._negatives.reshape(len(data.items), config.num_negatives)

    @cached_property
    def _touched(self) -> Ints:
        """Every touched (user, item) as one number, ascending."""
        users = np.repeat(np.arange(self._data.num_users), np.diff(self.batches.offsets))
        return users * self._data.num_items + self.batches.items

    def of(self, group: Group) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Places (U, P) of both items of each pair among the local rows, weights (U, P), star.

        A user's weights sum to 1; padding weighs 0. The star (U, R + 1) is 1 at the user's items.
        """
        data, width = self._data, self._negatives.shape[1]
        counts = data.counts[group.users]
        column = np.arange(counts.max())
        valid = column < counts[:, None]
        entry = np.where(valid, data.offsets[group.users][:, None] + column, 0)
        positive = self._place(group.users[:, None], data.items[entry])
        negative = self._negatives[entry]
        there = (negative >= 0) & valid[..., None]
        worse = self._place(group.users[:, None, None], np.where(there, negative, 0))
        better = np.broadcast_to(positive[..., None], worse.shape)
        weight = there / np.maximum(1, there.sum((1, 2), keepdims=True))
        star = np.zeros(group.items.shape)
        np.maximum.at(star, (np.arange(len(counts))[:, None], np.where(valid, positive, 0)), valid)
        pairs = (len(counts), valid.shape[1] * width)
        device, dtype = group.items.device, group.steps.dtype
        places = [np.where(there, place, 0).reshape(pairs) for place in (better, worse)]
        better_at, worse_at = (torch.from_numpy(place).to(device) for place in places)
        weights = torch.from_numpy(weight.reshape(pairs)).to(device, dtype)
        return better_at, worse_at, weights, torch.from_numpy(star).to(device, dtype)

    def _place(self, users: Ints, items: NDArray[np.integer]) -> Ints:
        wanted = users * self._data.num_items + items
        found: Ints = np.searchsorted(self._touched, wanted) - self.batches.offsets[users]
        return found


def _mean_table(tables: Tensor, begun: Tensor, updates: list[Update]) -> Tensor:
    """Mean of the users' tables: each the one that it began with (row of ``tables``) and a change.

    The first of a sum's tables is taken out of it, so that equal rows have themselves as mean.
    """
    base, share = tables[begun[0]], 1.0 / len(updates)
    mean = base.clone()
    for row, count in enumerate(torch.bincount(begun).tolist()):
        mean += count * share * (tables[row] - base)
    for update in updates:
        index, rows = update.rows["items"]
        mean[index] += share * rows
    return mean
