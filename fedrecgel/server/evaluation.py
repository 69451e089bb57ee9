"""One evaluation by all nodes: each ranks its own users and returns sums."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from flwr.app import ArrayRecord, Message, MessageType
from numpy.typing import NDArray

from fedrecgel.common.algorithms.base import ServerState
from fedrecgel.common.errors import FederationError, ReplyError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.metrics import NAMES, MetricSums
from fedrecgel.common.records import pack_evaluate_request, refuse_undeclared, unpack_metrics
from fedrecgel.common.requests import EvaluateRequest
from fedrecgel.server.exchange import Failure
from fedrecgel.server.federation import Federation
from fedrecgel.server.history import Tally


class EvaluationRound:
    """An evaluation of all users.

    Parameters
    ----------
    split, full
        As in `EvaluateRequest`.
    server
        The server's tensors to evaluate with.
    accepted : (N,) int64
        For every user the round whose private state to evaluate.
    tally
        Counts the replies.
    """

    def __init__(
        self,
        federation: Federation,
        round: int,
        tally: Tally,
        *,
        split: str,
        full: bool,
        server: ServerState,
        accepted: Ints,
    ) -> None:
        self._federation = federation
        self._server = server
        self._tally = tally
        self._rankings = ("sampled", "full") if full else ("sampled",)
        self._request = EvaluateRequest(federation.experiment, round, split, full, accepted, {})

    def messages(self, arrays: ArrayRecord) -> Iterator[Message]:
        """One message to every node that is there and hosts users."""
        federation, tensors = self._federation, self._federation.algorithm.tensors
        refuse_undeclared(arrays, tensors.shared)
        for member in federation.roster.here:
            users = np.arange(member.first, member.last)
            if not len(users):
                continue
            numbers = torch.from_numpy(users)
            download = federation.algorithm.evaluation_download(self._server, numbers)
            refuse_undeclared(download.addressed, tensors.addressed)
            request = replace(
                self._request,
                accepted=self._request.accepted[users],
                addressed=download.addressed,
                which=None if download.which is None else download.which.numpy(),
            )
            content = pack_evaluate_request(request, arrays)
            group = str(request.round)
            yield Message(content, member.node_id, MessageType.EVALUATE, group_id=group)

    def fold(self, replies: Iterable[Message]) -> dict[str, MetricSums]:
        """Sums over all nodes, by ranking, added in the order of the sites.

        Raises
        ------
        FederationError
            When no node could evaluate.
        """
        self._parts = parts = dict[int, dict[str, MetricSums]]()
        hosted = {m.node_id: m.last - m.first for m in self._federation.roster.members}
        for reply in replies:
            node_id = reply.metadata.src_node_id
            try:
                flat = unpack_metrics(reply.content)
                own = {r: MetricSums.from_flat(flat, f"{r}.") for r in self._rankings}
                if any(part.users > hosted.get(node_id, 0) for part in own.values()):
                    raise ReplyError("wrong number of users")
                parts[node_id] = own
            except ReplyError as error:
                self._tally.add(Failure(node_id, f"refused: {error}"))
        if not parts:
            raise FederationError(
                f"round {self._request.round}: no node could evaluate; {self._tally.first_line()}"
            )
        self._tally.replies = len(parts)
        sums = {ranking: MetricSums() for ranking in self._rankings}
        for member in self._federation.roster.members:
            for ranking, found in parts.get(member.node_id, {}).items():
                sums[ranking] = sums[ranking].add(found)
        return sums

    def by_member(self, ranking: str, name: str) -> NDArray[np.float64]:
        """(S, 2) users evaluated and sum of a metric over them, by the roster's members."""
        found = np.zeros((len(self._federation.roster.members), 2))
        for place, member in enumerate(self._federation.roster.members):
            if member.node_id in self._parts:
                sums = self._parts[member.node_id][ranking]
                found[place] = sums.users, sums.totals[NAMES.index(name)]
        return found
