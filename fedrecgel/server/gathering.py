"""The nodes of a federation: waiting until they are there, and asking each what it hosts."""

import math
import time
from collections.abc import Callable, Collection, Iterable

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedrecgel.common.errors import FederationError, ReplyError
from fedrecgel.common.greeting import Hello, Query
from fedrecgel.server.exchange import Failure, exchange, push
from fedrecgel.server.history import Tally

QUIET = 1.0
"""Seconds without a new node after which all are taken to be there.

A simulation registers its nodes while the server already runs, all within a fraction of this.
"""


def wait_for_nodes(
    grid: Grid,
    least: int,
    wait: float,
    *,
    quiet: float = 0.0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[int]:
    """Flower's numbers of the nodes, once there are ``least`` and none came for ``quiet`` seconds.

    Raises
    ------
    FederationError
        When there are fewer after ``wait`` seconds.
    """
    least = max(1, least)
    began = since = clock()
    known = 0
    while True:
        nodes, now = list(grid.get_node_ids()), clock()
        if len(nodes) != known:
            known, since = len(nodes), now
        # Nodes that come and go for ever are not waited for longer than missing ones.
        if known >= least and (now - since >= quiet or now - began > max(wait, quiet)):
            return nodes
        if known < least and now - began > wait:
            raise FederationError(
                f"{known} of {least} nodes are there after {wait:g} s; "
                "start the others, or lower min-nodes"
            )
        sleep(0.1)


AGAIN = 60.0
"""Seconds after which a node that did not answer, or was refused, is asked once more."""


CANNOT = "cannot take part"


class Arrivals:
    """Asks nodes what they host: all at the start, and later those that come.

    An answer takes a deployed node seconds. Later on it is not waited for: the question is sent at
    the beginning of one round, and the answer taken when it is there at the beginning of another.
    """

    def __init__(
        self, grid: Grid, query: Query, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._grid, self._query, self._clock = grid, query, clock
        self._pending: dict[str, int] = {}
        self._asked: dict[int, float] = {}

    def first(self, least: int, wait: float, tally: Tally) -> dict[int, Hello]:
        """Wait for nodes and ask each what it hosts; those that do not answer are counted.

        Raises
        ------
        FederationError
            When fewer than ``least`` nodes come or answer.
        """
        nodes = wait_for_nodes(self._grid, least, wait)
        self._asked = dict.fromkeys(nodes, self._clock())
        # Thousands of simulated nodes share a few processes: they take their time, but do answer.
        questions = self._questions(nodes)
        replies = exchange(self._grid, questions, wait, tally.add, renew=True, setting="wait")
        hellos: dict[int, Hello] = {}
        for reply in replies:
            node = reply.metadata.src_node_id
            try:
                hellos[node] = Hello.unpack(reply.content)
            except ReplyError as error:
                tally.add(Failure(node, f"refused: {error}"))
        if len(hellos) < least:
            raise FederationError(f"{len(hellos)} of {least} nodes answered; {tally.first_line()}")
        return hellos

    def _questions(self, nodes: Iterable[int]) -> list[Message]:
        content = dict(self._query.pack())
        return [Message(RecordDict(content), node, MessageType.QUERY) for node in nodes]

    def look(
        self, listed: Collection[int], known: Collection[int], tally: Tally
    ) -> dict[int, Hello]:
        """Ask nodes that are not ``known``; the answers that have come, by node."""
        self._asked = {node: since for node, since in self._asked.items() if node in listed}
        self._pending = {i: node for i, node in self._pending.items() if node in listed}
        now = self._clock()
        new = [
            node
            for node in listed
            if node not in known and now - self._asked.get(node, -math.inf) >= AGAIN
        ]
        if new:
            ids = push(self._grid, self._questions(new))
            self._pending |= {i: node for i, node in zip(ids, new, strict=True) if i}
            self._asked |= dict.fromkeys(new, now)
        hellos: dict[int, Hello] = {}
        while self._pending and (replies := list(self._grid.pull_messages(list(self._pending)))):
            for reply in replies:
                node = self._pending.pop(reply.metadata.reply_to_message_id, None)
                if node is not None and (hello := _hello(node, reply, tally)):
                    hellos[node] = hello
        return hellos


def _hello(node: int, reply: Message, tally: Tally) -> Hello | None:
    try:
        if not reply.has_error():
            return Hello.unpack(reply.content)
        said = (reply.error.reason or "it does not say why").strip().splitlines()[-1]
    except FederationError as error:
        said = str(error)
    tally.add(Failure(node, f"{CANNOT}: {said}"))
    return None
