"""Algorithms whose server needs each user's own update: local SGD of many users at once.

The server tells them apart, so a node sends one update for each user and not their sum. What such
an algorithm uploads is said by `Tensors.sent`; ``server-sees=sum`` refuses it.
"""

from abc import abstractmethod
from typing import ClassVar, Literal, TypeVar

from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.algorithms.delta import LocalConfig
from fedrecgel.common.config import Config
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.minibatches import Minibatches
from fedrecgel.common.state import State, Update

PerUserConfig = TypeVar("PerUserConfig", bound=Config)


class PerUserAlgorithm(Algorithm[PerUserConfig]):
    """One update for each user; `block_updates` computes them side by side."""

    reduce: ClassVar[Literal["sum", "per-user"]] = "per-user"

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


def minibatches(
    config: LocalConfig, data: Interactions, round: int, *, whole: bool = False
) -> Minibatches:
    """The users' samples of a round; ``whole`` as in `Minibatches`."""
    return Minibatches(
        data,
        num_negatives=config.num_negatives,
        size=config.batch_size,
        epochs=config.local_epochs,
        seed=config.seed,
        round=round,
        whole=whole,
    )
