"""How large a run's messages will be, known before it starts."""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from fedrecgel.common.algorithms.registry import make_algorithm
from fedrecgel.common.config import Config
from fedrecgel.common.errors import TooLargeError
from fedrecgel.common.state import size_of

MESSAGE_LIMIT = 1 << 30
"""Bytes of a message beyond which a run is refused: copies of it are in every process."""

STATES_KEPT = 4
"""Private states of a user that a run usually keeps; at most `fedrecgel.client.store.PLACES`."""


@dataclass(frozen=True)
class MessageSizes:
    """Bytes of what travels: a row of each item, and the rest.

    Attributes
    ----------
    row, network
        Of the shared tensors, on their way down.
    up_row, up_rest
        Of an update.
    addressed
        Of what one user gets beside the shared tensors, at most.
    per_user
        Whether each user's own update travels, and not the sum over a node's.
    """

    row: int
    network: int
    num_items: int
    up_row: int
    up_rest: int
    addressed: int = 0
    per_user: bool = False

    @property
    def down(self) -> int:
        """Bytes to a node in a round and in an evaluation."""
        return self.row * self.num_items + self.network

    def up(self, touched: int) -> int:
        """Bytes from a node whose users touch so many items: rows, their numbers, network."""
        return (self.up_row + 8) * min(touched, self.num_items) + self.up_rest

    def line(self, touched: float) -> str:
        """The forecast in one line; ``touched`` items is what the average user trains on."""
        one = self.up(min(round(touched), self.num_items))
        most = self.up(self.num_items)
        if self.per_user:
            return (
                f"messages: {_bytes(self.down)} to a node and {_bytes(self.addressed)} for each "
                f"user of the round; each user's own update comes back, at most {_bytes(most)}"
            )
        return (
            f"messages: {_bytes(self.down)} to a node, at most {_bytes(most)} "
            f"back; a node with one average user sends {_bytes(one)}"
        )

    def refuse_large(self, users: int = 1) -> None:
        """Refuse what is beyond `MESSAGE_LIMIT`.

        Parameters
        ----------
        users
            How many users of a round a node may have to train.

        Raises
        ------
        TooLargeError
            With the size and the limit.
        """
        if self.down > MESSAGE_LIMIT:
            raise TooLargeError(
                f"the shared tensors of {self.num_items:,} items take {_bytes(self.down)} a "
                f"message, more than {_bytes(MESSAGE_LIMIT)}; lower embedding-dim, or keep fewer "
                "items when preparing the data"
            )
        if self.per_user and self._each * users > MESSAGE_LIMIT:
            raise TooLargeError(
                f"each user's own update travels, and {users:,} users on a node take "
                f"{_bytes(self._each * users)} a message, more than {_bytes(MESSAGE_LIMIT)}; use "
                f"at least {-(-self._each * users // MESSAGE_LIMIT)} times as many nodes, or a "
                "smaller fraction or embedding-dim"
            )

    @property
    def _each(self) -> int:
        """Bytes of a message for each user whose own update travels."""
        return max(self.up(self.num_items), self.addressed)

    def users_of_message(self) -> int:
        """How many users of a round a node may have before its message is too large."""
        return MESSAGE_LIMIT // self._each if self.per_user else sys.maxsize


def message_sizes(config: Config, num_items: int) -> MessageSizes:
    """Sizes for a catalogue, from models of one and of two items: nothing large is allocated."""
    one, two = (_parts(config, items) for items in (1, 2))
    row, up_row, own = (after - before for before, after in zip(one, two, strict=True))
    algorithm = make_algorithm(config, 1)
    return MessageSizes(
        row,
        one[0] - row,
        num_items,
        up_row,
        one[1] - up_row,
        one[2] - own + own * num_items,
        algorithm.reduce == "per-user",
    )


def _parts(config: Config, num_items: int) -> tuple[int, int, int]:
    """Bytes of shared tensors, of a whole update, and of one user's addressed tensors."""
    algorithm = make_algorithm(config, num_items)
    server = algorithm.init_server()
    found = (server.shared, algorithm.update_template(server), algorithm.addressed_template)
    shared, update, addressed = (sum(map(size_of, state.values())) for state in found)
    return shared, update, addressed


def refuse_memory(config: Config, num_users: int, num_items: int) -> None:
    """Refuse a run whose server would keep more for its users than setting ``memory-limit``.

    Raises
    ------
    TooLargeError
        With the estimate.
    """
    needed = make_algorithm(config, num_items).server_bytes(num_users)
    if needed > config.memory_limit * 1e9:
        raise TooLargeError(
            f"the server of {config.algorithm} would keep {_bytes(needed)} for {num_users:,} users "
            f"and {num_items:,} items, more than memory-limit={config.memory_limit:g} GB; raise "
            "it, lower embedding-dim, or choose an algorithm that adds updates"
        )


def private_bytes(config: Config, num_users: int, num_items: int) -> int:
    """Bytes of one private state of every user."""
    template = make_algorithm(config, num_items).private_template
    return num_users * sum(map(size_of, template.values()))


def refuse_disk(config: Config, num_users: int, num_items: int, folder: Path) -> None:
    """Refuse a simulation whose private store would not fit on the disk of ``folder``.

    The store keeps a few states of each user: the last one, and those of the best round and of
    checkpoints; `STATES_KEPT` is usual.

    Raises
    ------
    TooLargeError
        With the estimate.
    """
    needed = STATES_KEPT * private_bytes(config, num_users, num_items)
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise TooLargeError(
            f"the private store of {config.algorithm} would take about {_bytes(needed)} for "
            f"{num_users:,} users and {num_items:,} items, and {folder} has {_bytes(free)} free; "
            "lower embedding-dim, or choose another disk or algorithm"
        )


def _bytes(number: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"
