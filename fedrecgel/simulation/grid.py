"""An in-process Grid: the same Strategy and ClientApp as everywhere, without processes or network.

Messages are handed to the ClientApp one by one when their replies are pulled, so one reply exists
at a time. This module is the only one that touches Flower's private `TaskIdentity`, which `Message`
reads, and the inside of its records (tested on the oldest and the newest supported Flower).
"""

import copy
import traceback
from collections.abc import Iterable
from typing import Any

from flwr.app import ArrayRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedrecgel.common.errors import FedRecError

RUN_ID = 1
SERVER_NODE_ID = 1
CLIENT_APP_RAISED = 2


class InProcessGrid(Grid):
    """Carries messages to ``num_nodes`` nodes of this process.

    Parameters
    ----------
    client_app
        Called for every message with the node's own Context.
    node_configs
        One for each node; the Context keeps its state over the rounds.
    run_config
        The same for all.
    """

    def __init__(
        self,
        client_app: ClientApp,
        node_configs: list[dict[str, Any]],
        run_config: dict[str, Any],
    ) -> None:
        self._app = client_app
        self._contexts = {
            SERVER_NODE_ID + 1 + i: Context(
                run_id=RUN_ID,
                node_id=SERVER_NODE_ID + 1 + i,
                node_config=config,
                state=RecordDict(),
                run_config=run_config,
            )
            for i, config in enumerate(node_configs)
        }
        self._pending: dict[str, Message] = {}
        self._sent = 0
        TaskIdentity.run_id = RUN_ID
        TaskIdentity.node_id = SERVER_NODE_ID
        TaskIdentity.task_id = 1

    def set_run(self, run: Any) -> None:  # noqa: ANN401 - Flower's type moved between versions
        """Nothing to set: there is one run."""

    @property
    def run(self) -> Any:  # noqa: ANN401 - as above
        """Not known in process."""
        raise NotImplementedError("an in-process run has no Run record")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """See `Grid.create_message`."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """See `Grid.get_node_ids`."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """See `Grid.push_messages`."""
        ids = []
        for message in messages:
            self._sent += 1
            message.metadata.__dict__["_message_id"] = str(self._sent)
            self._pending[str(self._sent)] = message
            ids.append(str(self._sent))
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """See `Grid.pull_messages`. Works on one message and returns its reply."""
        for message_id in message_ids:
            if message_id in self._pending:
                return [self._answer(self._pending.pop(message_id))]
        return []

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """See `Grid.send_and_receive`."""
        return [self._answer(self._pending.pop(i)) for i in self.push_messages(messages)]

    def _answer(self, message: Message) -> Message:
        received = Message(metadata=message.metadata, content=_copy(message.content))  # type: ignore[call-overload]
        try:
            return self._app(received, self._contexts[message.metadata.dst_node_id])
        except FedRecError as error:
            return Message(Error(CLIENT_APP_RAISED, str(error)), reply_to=message)
        except Exception:
            return Message(Error(CLIENT_APP_RAISED, traceback.format_exc()), reply_to=message)


def _copy(content: RecordDict) -> RecordDict:
    """Records of the node's own, as if they had travelled; the bytes of arrays are immutable.

    Everything was checked when it was packed. Building records anew would check each entry again
    and take a tenth of a round where nodes have few users, so they are copied from within.
    """
    records = {name: _copy_record(record) for name, record in _entries(content).items()}
    received: RecordDict = _shallow(content, records)
    return received


def _copy_record(record: Any) -> Any:  # noqa: ANN401 - any of Flower's records
    if isinstance(record, ArrayRecord):
        arrays = {name: copy.copy(array) for name, array in _entries(record).items()}
        return _shallow(record, arrays)
    return _shallow(record, {n: v.copy() if isinstance(v, list) else v for n, v in record.items()})


def _entries(record: Any) -> dict[str, Any]:  # noqa: ANN401 - any of Flower's records
    entries: dict[str, Any] = record.__dict__["_data"]
    return entries


def _shallow(record: Any, entries: dict[str, Any]) -> Any:  # noqa: ANN401 - any of Flower's records
    twin = copy.copy(record)
    twin.__dict__["_data"] = entries
    return twin
