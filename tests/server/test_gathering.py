"""Asking many nodes what they host takes longer than waiting for them to be there."""

from typing import Any

import pytest
from flwr.app import Message

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.greeting import Query
from fedrecgel.server import gathering
from fedrecgel.server.exchange import exchange
from fedrecgel.server.history import Tally
from fedrecgel.simulation.grid import InProcessGrid

pytestmark = pytest.mark.flower


def test_nodes_are_waited_for_while_others_still_answer(
    federation: Any, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0

    class Slow(InProcessGrid):
        """One answer at every second look; a look takes 0.6 seconds."""

        looks = 0

        def pull_messages(self, message_ids: Any) -> list[Message]:
            nonlocal seconds
            seconds += 0.6
            self.looks += 1
            return super().pull_messages(message_ids) if self.looks % 2 else []

    def with_clock(*arguments: Any, **more: Any) -> Any:
        return exchange(*arguments, **more, clock=lambda: seconds)

    monkeypatch.setattr(gathering, "exchange", with_clock)
    grid = federation(small_data, nodes=6).grid(Slow)
    tally = Tally(str, lambda site, failure: None)
    assert len(gathering.Arrivals(grid, Query()).first(6, 1.0, tally)) == 6
    assert tally.reasons == {}
