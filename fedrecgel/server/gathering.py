"""The nodes of a federation: waiting until they are there, and asking each what it hosts."""

import time
from collections.abc import Callable

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedrecgel.common.errors import FederationError, ReplyError
from fedrecgel.common.greeting import Hello, Query
from fedrecgel.server.exchange import Failure, exchange
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


def ask_nodes(grid: Grid, query: Query, least: int, wait: float, tally: Tally) -> dict[int, Hello]:
    """What each node hosts, by its number; nodes that do not answer are counted in ``tally``.

    Raises
    ------
    FederationError
        When fewer than ``least`` nodes come or answer.
    """
    nodes = wait_for_nodes(grid, least, wait)
    content = dict(query.pack())
    messages = [Message(RecordDict(content), node, MessageType.QUERY) for node in nodes]
    # Thousands of simulated nodes share a few processes: they take their time, but do answer.
    replies = exchange(grid, messages, wait, tally.add, renew=True)
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
