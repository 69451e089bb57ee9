"""Messages that a SuperLink takes only at the second time, because it was restarted meanwhile."""

from collections.abc import Iterable
from typing import Any

import pytest
from flwr.app import Message, MessageType, RecordDict

from fedrecgel.client.app import app
from fedrecgel.server import exchange as module
from fedrecgel.server.exchange import exchange, push
from fedrecgel.simulation.grid import InProcessGrid

pytestmark = pytest.mark.flower


class Restarted:
    """A grid whose SuperLink forgets what it was being sent, ``times`` times."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.taken: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        if self.times:
            self.times -= 1
            raise RuntimeError("Failed to push object")
        self.taken = list(messages)
        return [str(message.metadata.dst_node_id) for message in self.taken]

    def get_node_ids(self) -> list[int]:
        return [7, 8]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return []


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "AGAIN", 0.0)
    InProcessGrid(app, [], {})  # messages can be made only in a run


def messages() -> list[Message]:
    return [Message(RecordDict(), node, MessageType.TRAIN, group_id="3") for node in (7, 8)]


def test_messages_are_sent_again_as_new_ones() -> None:
    grid: Any = Restarted(2)
    asked = messages()
    assert push(grid, asked) == ["7", "8"]
    assert [m.metadata.group_id for m in grid.taken] == ["3", "3"]
    assert [m.metadata.message_type for m in grid.taken] == [MessageType.TRAIN] * 2
    assert grid.taken[0] is not asked[0]


def test_an_exchange_outlasts_a_restart() -> None:
    failures: list[Any] = []
    assert list(exchange(Restarted(1), messages(), 0.0, failures.append)) == []  # type: ignore[arg-type]
    assert [failure.reason for failure in failures] == [module.LATE] * 2


def test_what_fails_each_time_is_raised() -> None:
    with pytest.raises(RuntimeError, match="Failed to push"):
        push(Restarted(module.PUSHES), messages())  # type: ignore[arg-type]
