"""Real rounds through Strategy, ClientApp and in-process Grid, stopped when enough are measured."""

import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.clock import FLOWER, PACKING, PARTS, Clock
from fedrecgel.client.app import app
from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.grid import InProcessGrid

Settings = Mapping[str, Any]

NEUMF: Settings = {"scorer": "neumf", "rho_shared": 0.02, "rho_private": 0.02}
"""The paper's settings, which are the defaults, with both radii on."""
DOT: Settings = {
    "scorer": "dot",
    "embedding_dim": 64,
    "init_std": 0.1,
    "loss": "mean",
    "private_steps": 5,
    "local_lr": 0.05,
    "private_weight_decay": 3e-3,
    "server_lr": 0.02,
    "item_weight_decay": 1e-4,
    "rho_shared": 0.02,
    "rho_private": 0.02,
}
SCORERS = {"neumf": NEUMF, "dot": DOT}


@dataclass(frozen=True)
class Round:
    """A measured round: how many users, seconds by part, and seconds on the wall."""

    users: int
    seconds: Mapping[str, float]
    wall: float


@dataclass(frozen=True)
class Run:
    """Measured rounds, without the first and the evaluated one, and seconds of the evaluation."""

    rounds: list[Round]
    evaluation: float

    @property
    def updates_per_s(self) -> float:
        """Median over the rounds of users a second through the client's training function."""
        return statistics.median(r.users / r.seconds["train"] for r in self.rounds)

    @property
    def train(self) -> float:
        """Median seconds of a round's training on the clients."""
        return statistics.median(r.seconds["train"] for r in self.rounds)

    @property
    def seconds(self) -> float:
        """Median seconds of a whole round, everything included."""
        return statistics.median(self._whole(r) for r in self.rounds)

    @property
    def wall(self) -> float:
        """Median seconds of a whole round on the wall."""
        return statistics.median(r.wall for r in self.rounds)

    @property
    def flower_share(self) -> float:
        """Share of a round that messages take."""
        shares = [
            (r.seconds.get(FLOWER, 0.0) + r.seconds.get(PACKING, 0.0)) / self._whole(r)
            for r in self.rounds
        ]
        return statistics.median(shares)

    def split(self) -> dict[str, float]:
        """Median seconds of each part of a round."""
        return {p: statistics.median(r.seconds.get(p, 0.0) for r in self.rounds) for p in PARTS}

    @staticmethod
    def _whole(found: Round) -> float:
        return sum(found.seconds.get(part, 0.0) for part in PARTS)


class _Enough(Exception):
    """Raised when enough rounds were measured."""


def run_rounds(
    data: Dataset,
    settings: Settings,
    rounds: int,
    *,
    nodes: int = 1,
    only: int | None = None,
    evaluate: bool = False,
    after_round: Callable[[int], None] | None = None,
    now: Callable[[], float] = time.thread_time,
) -> Run:
    """Measure ``rounds`` rounds after one that is not counted.

    Parameters
    ----------
    only
        Run this one of the ``nodes`` alone, with its share of the users.
    evaluate
        Evaluate all users once, after the rounds.
    after_round
        Called with the number of each round.
    """
    last = 1 + rounds + evaluate
    config = make_config(
        "fedrecgel",
        {"rounds": 10**6, "evaluate_every": last if evaluate else 10**6, **settings},
    )
    clock, found = Clock(now), []
    walls = [time.perf_counter()]

    def on_round(line: dict[str, Any]) -> None:
        walls.append(time.perf_counter())
        found.append(Round(int(line["users"]), clock.lap(), walls[-1] - walls[-2]))
        if after_round:
            after_round(len(found))
        if len(found) == last:
            raise _Enough

    parts = range(nodes) if only is None else [only]
    node_configs = [{"partition-id": part, "num-partitions": nodes} for part in parts]
    with tempfile.TemporaryDirectory() as folder, clock.installed():
        run_config = {"data": str(data.path), "state": str(Path(folder) / "state")}
        grid = InProcessGrid(app, node_configs, run_config)
        strategy = FedRecStrategy(config, min_nodes=len(parts), on_round=on_round)
        try:
            with clock.part(FLOWER):
                strategy.start(grid)
        except _Enough:
            pass
    evaluation = found.pop().seconds["evaluation"] if evaluate else float("nan")
    return Run(found[1:], evaluation)
