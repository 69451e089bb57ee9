"""The in-process Grid: what a node receives is its own."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedrecgel.simulation.grid import InProcessGrid

pytestmark = pytest.mark.flower


def test_a_node_may_do_what_it_likes_with_its_message() -> None:
    app = ClientApp()

    @app.train()
    def spoil(message: Message, context: Context) -> Message:
        content = message.content
        assert content["weights"]["w"].numpy().tolist() == [1.0, 2.0]
        content["weights"]["w"].data = b""
        content["weights"]["extra"] = Array(np.zeros(1))
        content["about"]["numbers"].append(3)
        del content["about"]["round"]
        return Message(RecordDict(), reply_to=message)

    sent = RecordDict(
        {
            "weights": ArrayRecord({"w": Array(np.array([1.0, 2.0]))}),
            "about": ConfigRecord({"round": 1, "numbers": [1, 2]}),
        }
    )
    grid = InProcessGrid(app, [{}, {}], {})
    messages = [Message(sent, node, "train") for node in grid.get_node_ids()]
    replies = grid.send_and_receive(messages)
    assert [reply.has_error() for reply in replies] == [False, False]
    assert sent["weights"]["w"].numpy().tolist() == [1.0, 2.0]
    assert list(sent["weights"]) == ["w"]
    assert dict(sent["about"]) == {"round": 1, "numbers": [1, 2]}
