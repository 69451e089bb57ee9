"""One round of training: whom to ask, whose answer to believe, and the server's step."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from flwr.app import ArrayRecord, Message, MessageType, MetricRecord

from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.errors import ReplyError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.records import pack_train_request, refuse_undeclared, unpack_train_reply
from fedrecgel.common.requests import TrainRequest
from fedrecgel.common.state import Update, size_of
from fedrecgel.server.acceptance import NormGuard, check_reply
from fedrecgel.server.exchange import Failure
from fedrecgel.server.federation import Federation
from fedrecgel.server.history import Tally

FOLD = 32
"""Updates held before they are summed; bounds memory, and keeps sums of many nodes cheap."""


class TrainingRound:
    """A round of training.

    Parameters
    ----------
    tally
        Counts the replies.
    attempt
        Each attempt at a round chooses other users.
    """

    def __init__(self, federation: Federation, round: int, tally: Tally, attempt: int = 0) -> None:
        self._federation = federation
        self._round = round
        self._tally = tally
        config, roster = federation.config, federation.roster

        def choose(users: Ints, size: int) -> Ints:
            return federation.algorithm.cohort(federation.server, users, size, round, attempt)

        users = roster.cohort(config.seed, round, config.fraction, attempt, choose)
        self.users = len(users)
        self._addressed_bytes = 0
        self._parts = {member.node_id: (member, part) for member, part in roster.split(users)}

    def messages(self, arrays: ArrayRecord) -> Iterator[Message]:
        """One message to each node that hosts users of the cohort."""
        federation, tensors = self._federation, self._federation.algorithm.tensors
        refuse_undeclared(arrays, tensors.shared)
        for member, users in self._parts.values():
            download = federation.algorithm.download(federation.server, torch.from_numpy(users))
            refuse_undeclared(download.addressed, tensors.addressed)
            self._addressed_bytes += _addressed_bytes(download, len(users))
            request = TrainRequest(
                federation.experiment,
                self._round,
                users - member.first,
                federation.kept(users),
                download.shared,
                download.addressed,
                None if download.which is None else download.which.numpy(),
            )
            content = pack_train_request(request, arrays)
            group = str(self._round)
            yield Message(content, member.node_id, MessageType.TRAIN, group_id=group)

    def fold(self, replies: Iterable[Message]) -> MetricRecord | None:
        """Fold good replies in as they come and step the server; None if too few were good."""
        federation = self._federation
        folded = _InOrder(list(self._parts))
        accepted: dict[int, Ints] = {}
        updates: dict[int, Update] = {}
        guard = NormGuard(federation.norms, federation.config.norm_limit)
        for node_id, found in guard.filter(self._checked(replies), self._refuse):
            accepted[node_id] = users = self._parts[node_id][1]
            if federation.algorithm.reduce == "sum":
                folded.put(node_id, found[0])
            else:
                updates.update(zip(users.tolist(), found, strict=True))
        self._tally.replies = len(accepted)
        self._tally.users = sum(len(users) for users in accepted.values())
        if self._tally.users < max(1.0, federation.config.min_replies * self.users):
            return None
        if federation.algorithm.reduce == "sum":
            updates = {-1: folded.total()}
        updates = dict(sorted(updates.items()))  # not in the order in which replies came
        metrics = self._metrics(updates)
        federation.algorithm.aggregate(federation.server, updates, self._round)
        for users in accepted.values():
            federation.roster.accepted[users] = self._round
        for update in updates.values():
            for index, rows in update.rows.values():
                if federation.config.upload == "dense":
                    index = index[rows.flatten(1).any(1)]
                federation.trained_items[index.numpy()] = True
        return metrics

    def _checked(self, replies: Iterable[Message]) -> Iterator[tuple[int, list[Update]]]:
        """Replies that are well formed, one from each node."""
        algorithm = self._federation.algorithm
        template = algorithm.update_template(self._federation.server)
        seen: set[int] = set()
        for reply in replies:
            node_id = reply.metadata.src_node_id
            try:
                if node_id not in self._parts or node_id in seen:
                    raise ReplyError("not asked for")
                found = unpack_train_reply(reply.content, algorithm.tensors)
                if found.round != self._round:
                    raise ReplyError("for another round")
                users = len(self._parts[node_id][1])
                check_reply(found, users, template, algorithm.tensors, algorithm.reduce)
            except ReplyError as error:
                self._refuse(node_id, str(error))
                continue
            seen.add(node_id)
            yield node_id, found.updates

    def _refuse(self, node_id: int, reason: str) -> None:
        self._tally.add(Failure(node_id, f"refused: {reason}"))

    def _metrics(self, updates: dict[int, Update]) -> MetricRecord:
        """Means over accepted users; bytes are those of a node that hosts one user."""
        algorithm, server = self._federation.algorithm, self._federation.server
        template, rows = algorithm.update_template(server), algorithm.tensors.item_rows
        touched = sum(update.touched for update in updates.values())
        per_row = sum(8 + size_of(template[name]) / len(template[name]) for name in rows)
        dense = sum(size_of(value) for name, value in template.items() if name not in rows)
        users = self._tally.users
        return MetricRecord(
            {
                "loss": sum(update.loss for update in updates.values()) / users,
                "bytes-up-per-user": touched / users * per_row + dense,
                "bytes-down-per-user": sum(map(size_of, server.shared.values()))
                + self._addressed_bytes / self.users,
            }
        )


def _addressed_bytes(download: Download, users: int) -> int:
    """What the users get beside the shared tensors, each for themselves."""
    each = sum(size_of(value[0]) for value in download.addressed.values() if len(value))
    return each * int((download.rows(users) >= 0).sum())


@dataclass
class _InOrder:
    """Sums updates in the order of the nodes asked, however they arrive: rounding cannot differ."""

    nodes: list[int]
    waiting: dict[int, Update] = field(default_factory=dict)
    ready: list[Update] = field(default_factory=list)
    next: int = 0

    def put(self, node: int, update: Update) -> None:
        self.waiting[node] = update
        while self.next < len(self.nodes) and self.nodes[self.next] in self.waiting:
            self.ready.append(self.waiting.pop(self.nodes[self.next]))
            self.next += 1
            if len(self.ready) >= FOLD:
                self.ready = [Update.total(self.ready)]

    def total(self) -> Update:
        rest = [self.waiting[node] for node in self.nodes if node in self.waiting]
        return Update.total(self.ready + rest)
