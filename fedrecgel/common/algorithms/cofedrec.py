"""CoFedRec: items in clusters, and each round one group of users who come to share a table.

He, Liu, Keung, He: "Co-clustering for Federated Recommender System", WWW 2024, arXiv 2411.01690.

A client is PFedRec's (`fedrecgel.common.algorithms.pfedrec`): a private score function w, b, then
the item rows under it, minibatch by minibatch; but the table V_u is the user's own and stays. The
row step has a second, supervised contrastive term over items of one cluster, Z(i) the others of
item i's and v the rows divided by their lengths:

    l_i = -(tau / 0.5) * mean over z in Z(i) of log( exp(v_i.v_z / tau) / sum_a exp(v_i.v_a / tau) )
    V_i <- V_i - contrast * d(sum of l)/dV_i

with a over all items but i, and l_i = 0 where Z(i) is empty. All users take the same sample of
``contrast-items`` items in a round instead of the whole catalogue (0 = whole, the paper's), which
costs M^2 products a step. The server, each round, with the uploaded tables:

    labels = K-means of the rows of the mean table
    s_u = sum over i in cluster k of cosine(V_c,i, V_u,i), participant c and cluster k drawn
    group = the users from the highest s_u down to the elbow: the place farthest from the line
            between the first and the last of the sorted values
    V_s = mean table of the group

Members' tables become V_s; everybody else keeps their own. The mean table is never sent.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fedrecgel.common.algorithms.base import Download, ServerState
from fedrecgel.common.algorithms.delta import LocalConfig
from fedrecgel.common.algorithms.per_user import PerUserAlgorithm
from fedrecgel.common.algorithms.view import ScoresView
from fedrecgel.common.config import Config, Scalar, setting
from fedrecgel.common.hashing import Keys, integers, mix
from fedrecgel.common.initial import affine_layers
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.kmeans import kmeans
from fedrecgel.common.minibatches import Group, put, take
from fedrecgel.common.state import State, Tensors, Update, move, resolve_device, take_users

BASE_TEMPERATURE = 0.5
TABLES_ALIVE = 5.0
"""Group tables that wait for a member, in units of 1 / fraction: what a run was seen to keep."""


@dataclass(frozen=True, kw_only=True)
class CoFedRecConfig(LocalConfig):
    """Settings of CoFedRec."""

    algorithm: ClassVar[str] = "cofedrec"

    init_std: float = setting(1.0, "standard deviation of initial embeddings", low=0)
    local_epochs: int = setting(2, "passes over a user's samples in a round", low=1)
    clusters: int = setting(30, "clusters of items", low=1)
    contrast: float = setting(
        0.04, "step of the contrastive term (published reg: 80 * eta * reg); 0 = off", low=0
    )
    temperature: float = setting(0.1, "tau of the contrastive term", low=1e-3)
    contrast_items: int = setting(
        256,
        "items in the contrastive term, drawn anew each round, of M; a row is pulled in "
        "contrast-items / M of the rounds; 0 = all (paper)",
        low=0,
    )


class CoFedRec(PerUserAlgorithm[CoFedRecConfig]):
    """Announced ``labels`` (M,); private ``weight``, ``bias`` and the uploaded ``table`` (M, d).

    Tables are kept and sent less the initial one, which is a function of the seed: rows that
    nobody touched are exactly 0 and are not sent. Addressed is ``group`` (M, d), the table of the
    last group that a user was in since they trained.
    """

    name: ClassVar[str] = "cofedrec"
    config_class: ClassVar[type[Config]] = CoFedRecConfig
    citation: ClassVar[str] = (
        "He et al.: Co-clustering for Federated Recommender System, WWW 2024, arXiv 2411.01690"
    )
    search: ClassVar[Mapping[str, tuple[Scalar, ...]]] = {
        "item_lr": (1.0, 5.0, 20.0, 50.0),
        "local_lr": (0.1, 0.5, 2.0),
        "local_epochs": (2, 5),
        "clusters": (30, 100),
        "temperature": (0.1, 0.5),
        "init_std": (0.1, 0.3, 1.0),
    }
    scored_with: ClassVar[str] = "own score function over the own or the group's table"

    def __init__(self, config: CoFedRecConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        self.tensors = Tensors(
            shared=frozenset({"labels"}),
            item_rows=frozenset({"table"}),
            private=frozenset({"weight", "bias", "table"}),
            addressed=frozenset({"group"}),
            announced=frozenset({"labels"}),
            uploaded=frozenset({"table"}),
        )

    def init_server(self) -> ServerState:
        """See `Algorithm.init_server`: no item has a cluster yet."""
        return ServerState({"labels": torch.full((self.num_items,), -1)})

    def init_private(self, keys: Keys) -> State:
        """See `Algorithm.init_private`: the same for all users, as published."""
        config, users, size = self.config, len(keys), self.config.embedding_dim
        table = torch.zeros((users, self.num_items, size), dtype=self.dtype)
        return {**self.cast(affine_layers(users, size, config.seed)), "table": table}

    @property
    def addressed_template(self) -> State:
        """See `Algorithm.addressed_template`."""
        return {"group": torch.zeros_like(self.initial)}

    # --- client ------------------------------------------------------------------------------

    @torch.no_grad()
    def block_updates(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[list[Update], State]:
        """See `Algorithm.block_updates`."""
        device = resolve_device(self.config.device)
        labels, which = download.shared["labels"], download.rows(data.num_users)
        sample = self._sample(round)
        same = _same_cluster(labels[sample]).to(device)
        result = {name: torch.empty_like(value) for name, value in private.items()}
        updates = [Update()] * data.num_users
        batches = self.config.minibatches(data, round, whole=True)
        for group in batches.groups(self.config.block_size, self.dtype, device):
            users = torch.from_numpy(group.users)
            own = move(take_users(private, users), device)
            table = self._tables(own["table"], download, which[users])
            state, losses = self._tune(group, table, own, sample.to(device), same)
            for name, value in state.items():
                result[name][users] = value.to(result[name].device)
            for place, user in enumerate(group.users.tolist()):
                found = state["table"][place].cpu()
                index = (found != 0).any(1).nonzero()[:, 0]
                rows = {"table": (index, found[index])}
                updates[user] = Update(rows, {}, 1, float(losses[place]), len(index))
        return updates, result

    def _tables(self, own: Tensor, download: Download, which: Tensor) -> Tensor:
        """(U, M, d) users' own tables, or those of their groups."""
        member = which >= 0
        if not bool(member.any()):
            return own
        table = own.clone()
        table[member] = download.addressed["group"][which[member]].to(own.device)
        return table

    def _tune(
        self, group: Group, table: Tensor, own: State, sample: Tensor, same: Tensor
    ) -> tuple[State, Tensor]:
        """On each minibatch the score function, then the rows under it (`Minibatches` whole)."""
        config, weight, bias = self.config, own["weight"], own["bias"]
        # The last local row is padding.
        initial = torch.cat((self.initial, self.initial.new_zeros(1, table.shape[2])))
        initial = initial.to(table.device)
        rows = torch.cat((table, table.new_zeros(len(table), 1, table.shape[2])), 1)
        losses = weight.new_zeros(len(weight))
        for block in group.blocks():
            change = take(rows, block)
            some = initial[block.index % rows.shape[1]] + change
            logits = _scores(some, weight, bias)
            losses += block.losses(logits)
            residual = block.residual(logits)
            weight = weight - config.local_lr * torch.bmm(residual.unsqueeze(1), some).squeeze(1)
            bias = bias - config.local_lr * residual.sum(-1, keepdim=True)
            residual = block.residual(_scores(some, weight, bias))
            step = config.item_rate * residual.unsqueeze(-1) * weight.unsqueeze(1)
            pull = self._contrast(initial[sample] + rows[:, sample], same)
            put(rows, block, change - step)
            if pull is not None:
                active = block.total.sum(1) > 0
                rows[:, sample] -= config.contrast * active[:, None, None] * pull
        state = {"weight": weight, "bias": bias, "table": rows[:, :-1]}
        return state, losses / group.steps

    def _sample(self, round: int) -> Tensor:
        """(S,) items of the contrastive term, ascending."""
        size = self.config.contrast_items
        if not 0 < size < self.num_items:
            return torch.arange(self.num_items)
        order = mix("contrast", self.config.seed, round, np.arange(self.num_items))
        return torch.from_numpy(np.sort(np.argpartition(order, size)[:size]))

    def _contrast(self, rows: Tensor, same: Tensor) -> Tensor | None:
        """(U, S, d) gradient of the contrastive term by the sampled rows."""
        if self.config.contrast == 0 or not bool(same.any()):
            return None
        with torch.enable_grad():
            leaf = rows.detach().requires_grad_()
            loss = contrastive_loss(leaf, same, self.config.temperature)
            (gradient,) = torch.autograd.grad(loss, leaf)
        return gradient

    # --- server ------------------------------------------------------------------------------

    def aggregate(self, server: ServerState, updates: dict[int, Update], round: int) -> None:
        """Cluster the items, and give one group of the round's users a common table."""
        seed, users = self.config.seed, torch.tensor(sorted(updates))
        tables = self.initial.new_zeros((len(users), *self.initial.shape))
        for place, user in enumerate(users.tolist()):
            index, rows = updates[user].rows["table"]
            tables[place, index] = rows
        labels = kmeans(self.initial + tables.mean(0), self.config.clusters, seed, round)
        server.shared["labels"].copy_(labels)
        anchor = int(integers(mix("anchor", seed, round), len(users)))
        kinds = torch.unique(labels)
        cluster = kinds[int(integers(mix("cluster", seed, round), len(kinds)))]
        items = (labels == cluster).nonzero()[:, 0]
        rows = normalize(self.initial[items] + tables[:, items], dim=-1)
        similar = (rows * rows[anchor]).sum((1, 2))
        order = similar.argsort(descending=True, stable=True)
        group = order[: elbow(similar[order].double()) + 1].sort().values
        self._give(server, users, users[group], tables[group].mean(0), round)

    def _give(
        self, server: ServerState, users: Tensor, group: Tensor, table: Tensor, round: int
    ) -> None:
        """Remember whose table is whose: those of the round have their own, then the group's."""
        known = server.auxiliary.get("groups", torch.zeros(0, dtype=torch.int64))
        groups = torch.zeros(max(len(known), int(users.max()) + 1), dtype=torch.int64)
        groups[: len(known)] = known
        groups[users] = 0
        groups[group] = round
        alive = {str(number) for number in torch.unique(groups).tolist()}
        kept = {key: state for key, state in server.addressed.items() if key in alive}
        server.addressed = {**kept, str(round): {"group": table}}
        server.auxiliary["groups"] = groups

    def download(self, server: ServerState, users: Tensor) -> Download:
        """Group tables of those who were in a group since they trained; each of them once."""
        groups = server.auxiliary.get("groups", torch.zeros(0, dtype=torch.int64))
        known = (users >= 0) & (users < len(groups))
        rounds = torch.zeros_like(users)
        rounds[known] = groups[users[known]]
        needed, place = torch.unique(rounds[rounds > 0], return_inverse=True)
        which = torch.full_like(users, -1)
        which[rounds > 0] = place
        if not len(needed):
            return Download(server.shared)
        tables = [server.addressed[str(number)]["group"] for number in needed.tolist()]
        return Download(server.shared, {"group": torch.stack(tables)}, which)

    def server_bytes(self, num_users: int) -> int:
        """Tables of groups that members have yet to fetch, and a round's updates and tables."""
        tables = min(num_users, math.ceil(TABLES_ALIVE / self.config.fraction))
        tables += math.ceil(2.0 * self.config.fraction * num_users)
        return tables * self.num_items * self.config.embedding_dim * self.dtype.itemsize

    # --- scoring -----------------------------------------------------------------------------

    @torch.no_grad()
    def personal_view(self, download: Download, private: State) -> ScoresView:
        """See `Algorithm.personal_view`: the user's table or their group's."""
        own, weight = private["table"], private["weight"]
        table = self._tables(own, download, download.rows(len(weight)))
        scores = torch.bmm(table, weight.unsqueeze(-1)).squeeze(-1)
        scores += weight @ self.initial.to(weight.device).T
        return ScoresView(scores + private["bias"])


def _scores(rows: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.bmm(rows, weight.unsqueeze(-1)).squeeze(-1) + bias


def _same_cluster(labels: Tensor) -> Tensor:
    """(S, S) bool: other items of the same cluster; nothing before there are clusters."""
    same = (labels == labels[:, None]) & (labels >= 0)
    return same & ~torch.eye(len(labels), dtype=torch.bool)


def contrastive_loss(rows: Tensor, same: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al., 2020), summed over items and users.

    Parameters
    ----------
    rows : (U, S, d)
    same : (S, S) bool
        Which other item is in an item's cluster.
    """
    unit = normalize(rows, dim=-1)
    logits = torch.bmm(unit, unit.mT) / temperature
    own = torch.eye(len(same), dtype=torch.bool, device=same.device)
    log_share = logits - torch.logsumexp(logits.masked_fill(own, -torch.inf), -1, keepdim=True)
    counts = same.sum(1)
    mean = (log_share * same).sum(-1) / counts.clamp(min=1)
    return -(temperature / BASE_TEMPERATURE) * mean.sum()


def elbow(values: Tensor) -> int:
    """Index of the descending values (n,) that is farthest from the line from first to last.

    The first of several; 0 where there is no such place.
    """
    last = len(values) - 1
    if last < 2:
        return 0
    share = torch.arange(len(values), dtype=values.dtype) / last
    return int((values - (values[0] + share * (values[-1] - values[0]))).abs().argmax())
