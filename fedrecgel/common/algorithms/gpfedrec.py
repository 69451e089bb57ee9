"""GPFedRec: a table for each user, averaged over the users whose tables are most like theirs.

Zhang, Long, Zhou, Zhang, Zhang, Yang: "GPFedRec: Graph-Guided Personalization for Federated
Recommendation", KDD 2024, arXiv 2305.07866.

A user has a vector p and a network of their own, and steps their own copy of the shared item table
Q over minibatches, starting from the server's. Where the server has a table r_u for them, the copy
is pulled towards it, all M rows in every step (the paper's mean of (Q - r_u)^2 over the table):

    Q_i <- Q_i - rate * dL/dQ_i - pull * (Q_i - r_u,i)

so a row that no sample touches is r_u,i + (1 - pull)^steps (Q_i - r_u,i). The server:

    S_uv = cosine(Q_u, Q_v), whole tables as vectors
    A_uv = 1 where S_uv > threshold * mean(S), or among the ``neighbours`` largest of row u;
           every user is a neighbour of themselves; rows divided by their sums
    r = A^layers Q,  Q = mean over users of r_u

The last table of those who sit a round out stays in the graph. The published code takes cosine
*distance* for similarity and so averages the least similar users, never oneself
(``similarity=distance``); it needs all users in every round.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedrecgel.common.algorithms.base import Download, ServerState
from fedrecgel.common.algorithms.delta import LocalConfig
from fedrecgel.common.algorithms.per_user import PerUserAlgorithm
from fedrecgel.common.config import Config, Scalar, setting
from fedrecgel.common.hashing import Keys
from fedrecgel.common.initial import normal_users
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.minibatches import Group, put, take
from fedrecgel.common.scorers.user_mlp import UserMLP, UserMLPView
from fedrecgel.common.state import State, Tensors, Update, move, resolve_device, take_users


@dataclass(frozen=True, kw_only=True)
class GPFedRecConfig(LocalConfig):
    """Settings of GPFedRec."""

    algorithm: ClassVar[str] = "gpfedrec"

    init_std: float = setting(1.0, "standard deviation of initial embeddings", low=0)
    user_lr: float = setting(
        7.9, "learning rate of the user's vector (published eta: 79 * eta)", low=0
    )
    pull: float = setting(
        0.5,
        "how much of the gap to the neighbours' table a minibatch closes "
        "(published reg: 160 * eta * reg / embedding-dim)",
        low=0,
        high=1,
    )
    threshold: float = setting(
        1.0, "neighbours are the users more similar than this many times the mean", low=0
    )
    neighbours: int = setting(
        0, "how many most similar users are neighbours, oneself among them; 0 = by threshold", low=0
    )
    layers: int = setting(1, "steps along the graph of similar users", low=1)
    similarity: str = setting(
        "cosine",
        "cosine; or distance: the published code's, which averages the least similar users",
        choices=("cosine", "distance"),
    )
    score_with: str = setting(
        "local",
        "table to score with: the user's own after their last round (paper), or the global one",
        choices=("local", "global"),
    )


class GPFedRec(PerUserAlgorithm[GPFedRecConfig]):
    """Shared ``items`` (M, d); private ``user`` (d,), ``mlp.*`` and, to score with, ``scores``.

    Each round begins with the server's table, so of the last local one a device needs nothing but
    its ``scores`` (M,); there with ``score-with=local`` only. ``rounds`` counts how often the user
    trained: who never did scores with the global table. Addressed is ``neighbours`` (M, d), the
    user's r_u. The server keeps the last table of every user who took part.
    """

    name: ClassVar[str] = "gpfedrec"
    config_class: ClassVar[type[Config]] = GPFedRecConfig
    citation: ClassVar[str] = (
        "Zhang et al.: GPFedRec: Graph-Guided Personalization for Federated Recommendation, "
        "KDD 2024, arXiv 2305.07866"
    )
    search: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "item_lr": (1.0, 5.0, 20.0, 50.0),
        "local_lr": (0.1, 0.3, 1.0),
        "user_lr": (0.5, 2.0),
        "pull": (0.05, 0.2, 0.5),
        "local_epochs": (1, 5),
        "init_std": (0.1, 0.3, 1.0),
        "score_with": ("local", "global"),
    }
    scored_with: ClassVar[str] = "own network over the own table of the last round"

    def __init__(self, config: GPFedRecConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        self.mlp = UserMLP(config.embedding_dim)
        own = {"scores", "rounds"} if config.score_with == "local" else set()
        self.tensors = Tensors(
            shared=frozenset({"items"}),
            item_rows=frozenset({"items"}),
            private=frozenset({"user", *self.mlp.names, *own}),
            addressed=frozenset({"neighbours"}),
        )

    def init_server(self) -> ServerState:
        """See `Algorithm.init_server`."""
        return ServerState({"items": self.initial.clone()})

    def init_private(self, keys: Keys) -> State:
        """See `Algorithm.init_private`."""
        config = self.config
        state = {
            "user": normal_users(keys, config.embedding_dim, config.init_std, config.seed),
            **self.mlp.init(len(keys), config.seed),
        }
        if config.score_with == "local":
            state["scores"] = torch.zeros(len(keys), self.num_items, dtype=self.dtype)
            state["rounds"] = torch.zeros(len(keys), dtype=torch.int64)
        return self.cast(state)

    @property
    def addressed_template(self) -> State:
        """See `Algorithm.addressed_template`."""
        return {"neighbours": torch.zeros_like(self.initial)}

    # --- client ------------------------------------------------------------------------------

    @torch.no_grad()
    def block_updates(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[list[Update], State]:
        """See `Algorithm.block_updates`."""
        device = resolve_device(self.config.device)
        items = download.shared["items"].to(device)
        neighbours = download.addressed.get("neighbours", items[None]).to(device)
        which = download.rows(data.num_users)
        result = {name: torch.empty_like(value) for name, value in private.items()}
        updates = [Update()] * data.num_users
        batches = self.config.minibatches(data, round)
        for group in batches.groups(self.config.block_size, self.dtype, device):
            users = torch.from_numpy(group.users)
            own = move(take_users(private, users), device)
            row = which[users].to(device)
            target = neighbours[row.clamp(min=0)[:, None], group.items]
            pull = self.config.pull * (row >= 0).to(self.dtype)
            state, rows, losses = self._tune(group, items[group.items], target, pull, own)
            for name, value in state.items():
                result[name][users] = value.to(result[name].device)
            left = (1.0 - pull) ** group.steps
            for place, user in enumerate(group.users.tolist()):
                goal = neighbours[max(0, int(row[place]))]
                table = torch.lerp(goal, items, left[place]) if pull[place] > 0 else items.clone()
                valid = group.valid[place]
                table[group.items[place, valid]] = rows[place, valid]
                updates[user] = self._update(table - items, float(losses[place]))
                if "scores" in result:
                    last = {name: value[place : place + 1] for name, value in state.items()}
                    scores = self.mlp.score(table[None], last.pop("user"), last)
                    result["scores"][user] = scores[0].to(result["scores"].device)
        if "rounds" in result:
            result["rounds"] = private["rounds"] + 1
        return updates, result

    def _tune(
        self, group: Group, rows: Tensor, target: Tensor, pull: Tensor, own: State
    ) -> tuple[State, Tensor, Tensor]:
        """One joint step on each minibatch: user, network, and all local rows (U, R + 1, d)."""
        config = self.config
        user, network = own["user"], {name: own[name] for name in self.mlp.names}
        losses = user.new_zeros(len(user))
        for block in group.blocks():
            some = take(rows, block)
            by_rows, by_user, by_network, loss = self.mlp.gradients(block, some, user, network)
            active = (block.total.sum(1) > 0).to(rows.dtype)
            rows = torch.lerp(rows, target, (pull * active)[:, None, None])
            put(rows, block, take(rows, block) - config.item_rate * by_rows)
            user = user - config.user_lr * by_user
            network = {n: value - config.local_lr * by_network[n] for n, value in network.items()}
            losses += loss
        return {"user": user, **network}, rows, losses / group.steps

    def _update(self, change: Tensor, loss: float) -> Update:
        """The rows that changed; with a pull, all that anybody ever touched."""
        index = (change != 0).any(1).nonzero()[:, 0]
        rows = (index.cpu(), change[index].cpu())
        return Update({"items": rows}, {}, 1, loss, len(index))

    # --- server ------------------------------------------------------------------------------

    def aggregate(self, server: ServerState, updates: dict[int, Update], round: int) -> None:
        """Put the new tables in, and compare all.

        Tables are kept less the initial one: a row that nobody touched is then exactly 0, and its
        averages are.
        """
        state, base = server.auxiliary, (server.shared["items"] - self.initial).flatten()
        users = torch.tensor(sorted(updates))
        new = base.repeat(len(users), 1)
        for place, user in enumerate(users.tolist()):
            index, rows = updates[user].rows["items"]
            new[place].view(self.num_items, -1)[index] += rows
        self._enrol(state, users)
        at = torch.searchsorted(state["members"], users)
        tables = state["tables"].flatten(1)
        tables[at] = new
        products = (new @ tables.T).double()
        state["products"][at] = products
        state["products"][:, at] = products.T
        state["weights"] = self._weights(state)
        mean = (state["weights"].mean(0, keepdim=True).to(self.dtype) @ tables)[0]
        server.shared["items"].copy_(self.initial + mean.view_as(self.initial))

    def _enrol(self, state: State, users: Tensor) -> None:
        """Make room for users who were never there; members stay in ascending order."""
        known = state.get("members", users[:0])
        members = torch.unique(torch.cat((known, users)))
        if len(members) == len(known):
            return
        place = torch.searchsorted(members, known)
        tables = self.initial.new_zeros((len(members), *self.initial.shape))
        products = torch.zeros(len(members), len(members), dtype=torch.float64)
        if len(known):
            tables[place] = state["tables"]
            products[place[:, None], place] = state["products"]
        state.update(members=members, tables=tables, products=products)

    def _weights(self, state: State) -> Tensor:
        """(P, P) float64, row u: how much of each member's table is in r_u."""
        initial = self.initial.flatten()
        shift = (state["tables"].flatten(1) @ initial).double()
        inner = state["products"] + shift + shift[:, None] + initial.double().square().sum()
        length = inner.diagonal().clamp(min=1e-300).sqrt()
        similar = inner / (length * length[:, None])
        own = torch.eye(len(similar), dtype=torch.bool)
        if self.config.similarity == "distance":
            similar = (1.0 - similar).masked_fill(own, 0.0)
        if self.config.neighbours:
            best = similar.topk(min(self.config.neighbours, len(similar)), dim=1).indices
            near = torch.zeros_like(own).scatter_(1, best, True)
        else:
            near = similar > self.config.threshold * similar.mean()
        alone = ~near.any(1, keepdim=True)
        near |= own & (alone if self.config.similarity == "distance" else torch.ones_like(alone))
        weights = near.double() / near.sum(1, keepdim=True)
        mixed: Tensor = torch.linalg.matrix_power(weights, self.config.layers)
        return mixed

    def download(self, server: ServerState, users: Tensor) -> Download:
        """Neighbours' tables of those users who have been there before."""
        state = server.auxiliary
        members = state.get("members", users[:0])
        known = torch.isin(users, members)
        place = torch.searchsorted(members, users[known])
        which = torch.full_like(users, -1)
        which[known] = torch.arange(len(place))
        if not len(place):
            return Download(server.shared)
        mixed = state["weights"][place].to(self.dtype) @ state["tables"].flatten(1)
        tables = self.initial + mixed.view(-1, *self.initial.shape)
        return Download(server.shared, {"neighbours": tables}, which)

    def evaluation_download(self, server: ServerState, users: Tensor) -> Download:
        """Nobody's neighbours are needed to score."""
        return Download(server.shared)

    def snapshot(self, server: ServerState) -> ServerState:
        """The shared table alone."""
        return ServerState({name: value.clone() for name, value in server.shared.items()})

    def server_bytes(self, num_users: int) -> int:
        """A table for each user; those of a round are there as updates and as tables besides."""
        table = self.num_items * self.config.embedding_dim * self.dtype.itemsize
        tables = math.ceil((1.0 + 2.0 * self.config.fraction) * num_users)
        return tables * table + 16 * num_users**2

    # --- scoring -----------------------------------------------------------------------------

    def personal_view(self, download: Download, private: State) -> UserMLPView:
        """See `Algorithm.personal_view`: the user's network over one of the two tables."""
        network = {name: private[name] for name in self.mlp.names}
        kept = private.get("scores")
        has = None if kept is None else private["rounds"] > 0
        items = download.shared["items"]
        return UserMLPView(self.mlp, items, private["user"], network, kept, has)
