"""Waiting until all nodes of a federation are there, when nobody said how many there will be."""

import time
from collections.abc import Callable

from flwr.serverapp import Grid

from fedrecgel.common.errors import FederationError

QUIET = 1.0
"""Seconds without a new node after which all are taken to be there.

A simulation registers its nodes while the server already runs, all within a fraction of this.
"""


def wait_until_settled(
    grid: Grid,
    least: int,
    wait: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """How many nodes there are, once there are ``least`` and no more come.

    Raises
    ------
    FederationError
        When there are fewer after ``wait`` seconds.
    """
    began = since = clock()
    nodes = 0
    while True:
        found, now = len(list(grid.get_node_ids())), clock()
        if found != nodes:
            nodes, since = found, now
        if nodes >= max(1, least) and now - since >= QUIET:
            return nodes
        if now - began > wait and nodes < max(1, least):
            raise FederationError(
                f"{nodes} of {max(1, least)} nodes are there after {wait:g} s; "
                "start the others, or lower min-nodes"
            )
        sleep(0.1)
