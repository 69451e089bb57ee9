"""How large a run's messages will be, known before it starts."""

from dataclasses import dataclass

import torch

from fedrecgel.common.algorithms.registry import make_algorithm
from fedrecgel.common.config import Config
from fedrecgel.common.errors import ConfigError

MESSAGE_LIMIT = 1 << 30
"""Bytes of shared tensors beyond which a run is refused: copies of them are in every process."""


@dataclass(frozen=True)
class MessageSizes:
    """Bytes of the shared tensors: a row of each item, and the rest."""

    row: int
    network: int
    num_items: int

    @property
    def down(self) -> int:
        """Bytes to a node in a round and in an evaluation."""
        return self.row * self.num_items + self.network

    def up(self, touched: int) -> int:
        """Bytes from a node whose users touch so many items: rows, their numbers, network."""
        return (self.row + 8) * min(touched, self.num_items) + self.network

    def line(self, touched: float) -> str:
        """The forecast in one line; ``touched`` items is what the average user trains on."""
        one = self.up(min(round(touched), self.num_items))
        return (
            f"messages: {_bytes(self.down)} to a node, at most {_bytes(self.up(self.num_items))} "
            f"back; a node with one average user sends {_bytes(one)}"
        )

    def refuse_large(self) -> None:
        """Refuse what is beyond `MESSAGE_LIMIT`.

        Raises
        ------
        ConfigError
            With the size and the limit.
        """
        if self.down > MESSAGE_LIMIT:
            raise ConfigError(
                f"the shared tensors of {self.num_items:,} items take {_bytes(self.down)} a "
                f"message, more than {_bytes(MESSAGE_LIMIT)}; lower embedding-dim, or keep fewer "
                "items when preparing the data"
            )


def message_sizes(config: Config, num_items: int) -> MessageSizes:
    """Sizes for a catalogue, from a model of one item: nothing large is allocated."""
    algorithm = make_algorithm(config, 1)
    row = network = 0
    for name, value in algorithm.init_server().shared.items():
        size = _size(value)
        if name in algorithm.tensors.item_rows:
            row += size
        else:
            network += size
    return MessageSizes(row, network, num_items)


def _size(value: torch.Tensor) -> int:
    return value.numel() * value.element_size()


def _bytes(number: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} B"
