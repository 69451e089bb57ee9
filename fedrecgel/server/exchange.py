"""Sending messages to nodes and taking replies as they come, within a bounded time."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from flwr.app import Message
from flwr.serverapp import Grid

POLL = (0.02, 0.5)
"""Seconds between two looks for replies: at first, and at most."""
LOOK = 2.0
"""Seconds between two looks at which nodes are there."""
GONE = 5.0
"""Seconds after which nothing is expected of a node that is not there."""
BACK = 60.0
"""The same of one that came back meanwhile: what it was working on is probably lost."""

PUSHES, AGAIN = 5, 3.0
"""How often messages are sent to a SuperLink that fails meanwhile, and seconds in between."""

WENT = "node went away"
LATE = "no reply in time"


@dataclass(frozen=True)
class Failure:
    """A reply that did not come or says that the node failed.

    Attributes
    ----------
    node_id
        Flower's number of the node.
    reason
        A few words, the same for the same kind of failure.
    detail
        What the node said, if anything.
    """

    node_id: int
    reason: str
    detail: str = ""


def exchange(
    grid: Grid,
    messages: Iterable[Message],
    timeout: float,
    on_failure: Callable[[Failure], None],
    *,
    renew: bool = False,
    setting: str = "round-timeout",
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Message]:
    """Push messages and yield each good reply as soon as it is there; report the others.

    Flower's own ``send_and_receive`` collects all replies before it returns and sleeps three
    seconds between looks; folding replies as they arrive keeps one reply in memory. With ``renew``
    the timeout counts from the last reply; ``setting`` is what changes it. A node that Flower does
    not list any more is given up after `GONE` seconds.
    """
    messages = list(messages)
    nodes = [message.metadata.dst_node_id for message in messages]
    waiting: dict[str, int] = {}
    for number, (message_id, node_id) in enumerate(zip(push(grid, messages), nodes, strict=True)):
        if message_id:
            waiting[message_id] = node_id
        else:
            on_failure(Failure(nodes[number], "could not be sent"))
    deadline, pause = clock() + timeout, POLL[0]
    absent = _Absent(grid, clock)
    while waiting:
        before = len(waiting)
        for reply in grid.pull_messages(list(waiting)):
            asked = reply.metadata.reply_to_message_id
            if asked not in waiting:
                on_failure(Failure(reply.metadata.src_node_id, "late or sent twice"))
                continue
            node_id = waiting.pop(asked)
            if reply.has_error():
                reason = _REASONS.get(reply.error.code, "failed")
                on_failure(Failure(node_id, reason, reply.error.reason or ""))
            else:
                yield reply
        if len(waiting) < before:
            pause = POLL[0]
            if renew:
                deadline = clock() + timeout
        elif clock() >= deadline:
            break
        else:
            time.sleep(pause)
            pause = min(POLL[1], pause * 1.5)
            lost = absent.given_up(set(waiting.values()))
            for message_id in [found for found, node_id in waiting.items() if node_id in lost]:
                on_failure(Failure(waiting.pop(message_id), WENT))
    for node_id in waiting.values():
        on_failure(Failure(node_id, LATE, _late(timeout, setting)))


def _late(seconds: float, setting: str) -> str:
    """Flower itself lets a message expire after twelve hours: what is late is late by our bound."""
    return (
        f"nothing within {seconds:g} s; a node that shares its cores with others is slow: raise "
        f"{setting}, or host fewer nodes on a machine"
    )


def push(grid: Grid, messages: list[Message]) -> list[str]:
    """Send messages; ids in their order, empty for one that was not taken.

    A SuperLink that is restarted while it is sent something knows nothing of it afterwards. So the
    same content is sent in new messages; nobody waits for the others. A node that got both keeps
    one state of the round.

    Raises
    ------
    Exception
        Flower's own, when it fails `PUSHES` times.
    """
    for attempt in range(1, PUSHES + 1):
        try:
            return list(grid.push_messages(messages))
        except Exception:
            if attempt == PUSHES:
                raise
        time.sleep(AGAIN)
        messages = [_anew(message) for message in messages]
    raise AssertionError("never left without an answer")


def _anew(message: Message) -> Message:
    about = message.metadata
    return Message(
        message.content, about.dst_node_id, about.message_type, group_id=about.group_id or None
    )


class _Absent:
    """Which of the nodes that owe a reply are not there, looked up every `LOOK` seconds."""

    def __init__(self, grid: Grid, clock: Callable[[], float]) -> None:
        self._grid, self._clock, self._next = grid, clock, clock() + LOOK
        self._since: dict[int, float] = {}

    def given_up(self, nodes: set[int]) -> set[int]:
        """Those that were missed so long ago that nothing is expected of them."""
        now = self._clock()
        if now < self._next:
            return set()
        self._next = now + LOOK
        listed = set(self._grid.get_node_ids())
        for node in nodes - listed:
            self._since.setdefault(node, now)
        missed = nodes & self._since.keys()
        return {n for n in missed if now - self._since[n] >= (BACK if n in listed else GONE)}


_REASONS = {
    1: "client app cannot be loaded",
    2: "client app raised an exception",
    3: "message expired",
    4: "reply expired",
    5: "node unavailable",
    8: "client app crashed",
}
