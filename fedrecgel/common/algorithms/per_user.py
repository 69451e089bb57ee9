"""Algorithms whose server needs each user's own update: local SGD of many users at once.

The server tells them apart, so a node sends one update for each user and not their sum. What such
an algorithm uploads is said by `Tensors.sent`; ``server-sees=sum`` refuses it.
"""

from abc import abstractmethod
from functools import cached_property
from typing import ClassVar, Literal, TypeVar

from torch import Tensor

from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.algorithms.delta import TableConfig
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.state import State, Update

PerUserConfig = TypeVar("PerUserConfig", bound=TableConfig)


class PerUserAlgorithm(Algorithm[PerUserConfig]):
    """One update for each user; `block_updates` computes them side by side."""

    reduce: ClassVar[Literal["sum", "per-user"]] = "per-user"

    @cached_property
    def initial(self) -> Tensor:
        """(M, d) the item table before round 1; both sides know it."""
        return self.config.first_table(self.num_items).to(self.dtype)

    @abstractmethod
    def block_updates(
        self, download: Download, private: State, data: Interactions, round: int
    ) -> tuple[list[Update], State]:
        """See `Algorithm.block_updates`."""

    def local_update(
        self, download: State, private: State, data: Interactions, round: int
    ) -> tuple[Update, State]:
        """See `Algorithm.local_update`: a group of one."""
        names = self.tensors.addressed
        shared = {name: value for name, value in download.items() if name not in names}
        own = {name: value.unsqueeze(0) for name, value in download.items() if name in names}
        stacked = {name: value.unsqueeze(0) for name, value in private.items()}
        (update,), state = self.block_updates(Download(shared, own), stacked, data, round)
        return update, {name: value[0] for name, value in state.items()}
