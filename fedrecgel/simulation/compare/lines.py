"""Rows in the making: which cells each needs next, and what it says once they are there."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedrecgel.common.algorithms.base import Algorithm
from fedrecgel.common.algorithms.registry import algorithm_class
from fedrecgel.common.config import Config
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.simulation.central.methods import METHODS
from fedrecgel.simulation.compare.gather import Measured, Row, curve
from fedrecgel.simulation.compare.plan import TRIAL_SEED, Cell, Entry, changed
from fedrecgel.simulation.compare.pool import Job
from fedrecgel.simulation.compare.store import Outcome, Store
from fedrecgel.simulation.compare.work import score

__all__ = ["AlgorithmLine", "Line", "ReferenceLine"]

Outcomes = Mapping[str, Outcome]
"""By key of the cell."""


class Line(ABC):
    """A row of one data set's table, from its first cell to its numbers."""

    @property
    @abstractmethod
    def size(self) -> int:
        """How many cells it needs in all."""

    @abstractmethod
    def jobs(self, outcomes: Outcomes) -> list[Job]:
        """All cells that can be made now, those with an outcome included."""

    @abstractmethod
    def row(self, outcomes: Outcomes) -> Row:
        """What it says so far."""


@dataclass
class AlgorithmLine(Line):
    """An algorithm: its trials, the choice among them, its seeds.

    Attributes
    ----------
    trials
        Settings to try; with a single one there is nothing to choose and it is not run.
    budget
        How many were allowed; the grid may have fewer.
    trial_rounds
        Rounds of a trial; 0 for as many as a seed has.
    """

    data: Dataset
    path: Path
    entry: Entry
    trials: Sequence[Config]
    budget: int
    seeds: int
    trial_rounds: int
    store: Store
    _scores: dict[int, float] = field(default_factory=dict)

    @property
    def size(self) -> int:
        return len(self._tried) + self.seeds

    @property
    def _tried(self) -> list[Cell]:
        if len(self.trials) == 1:
            return []
        return [self._cell("trial", trial) for trial in self.trials]

    def _cell(self, kind: str, config: Config, seed: int = TRIAL_SEED) -> Cell:
        if kind == "seed":
            return Cell.run("seed", self.data, config.replace(seed=seed))
        rounds = min(self.trial_rounds or config.rounds, config.rounds)
        return Cell.run("trial", self.data, config.replace(seed=seed, rounds=rounds))

    def jobs(self, outcomes: Outcomes) -> list[Job]:
        rounds = self.trials[0].rounds
        trial_rounds = min(self.trial_rounds or rounds, rounds)
        found = [Job(cell, self.path, trial_rounds, rounds) for cell in self._tried]
        chosen = self._chosen(outcomes)
        if chosen is not None:
            for seed in range(self.seeds):
                found.append(Job(self._cell("seed", chosen, seed), self.path, chosen.rounds))
        return found

    def _chosen(self, outcomes: Outcomes) -> Config | None:
        """The best trial; None while some are missing, or when none can be used."""
        tried = self._tried
        if not tried:
            return self.trials[0]
        if any(cell.key not in outcomes for cell in tried):
            return None
        for place, cell in enumerate(tried):
            if place not in self._scores and outcomes[cell.key].status == "done":
                found = score(self.store.history(cell), self.trials[place].select_by)
                if found is not None:
                    self._scores[place] = found
        if not self._scores:
            return None
        # The first of equals: the start before what was drawn.
        return self.trials[max(self._scores, key=lambda place: (self._scores[place], -place))]

    def row(self, outcomes: Outcomes) -> Row:
        chosen = self._chosen(outcomes)
        algorithm = algorithm_class(self.entry.algorithm)
        row = Row(self.entry.label, "federated", "missing", about=about(algorithm, self.trials[0]))
        row.trials = self._trials(outcomes)
        _note(row, [(f"trial {n}", c) for n, c in enumerate(self._tried, 1)], outcomes)
        if len(self.trials) < self.budget:
            number = "one row" if len(self.trials) == 1 else f"{len(self.trials)} rows"
            row.notes.append(f"its grid has {number} of settings, fewer than the budget")
        if chosen is None:
            if all(cell.key in outcomes for cell in self._tried):
                statuses = {outcomes[cell.key].status for cell in self._tried}
                row.status = "infeasible" if statuses == {"infeasible"} else "failed"
            return row
        row.settings, row.about = changed(chosen), about(algorithm, chosen)
        row.settings.pop("seed", None)
        cells = [self._cell("seed", chosen, seed) for seed in range(self.seeds)]
        _note(row, [(f"seed {seed}", cell) for seed, cell in enumerate(cells)], outcomes)
        row.seeds = _measure(row, cells, outcomes, self.store)
        row.curve = curve([self.store.history(cells[s]) for s in row.seeds], chosen.select_by)
        return row

    def _trials(self, outcomes: Outcomes) -> list[dict[str, object]]:
        base = self.trials[0].to_flat()
        found: list[dict[str, object]] = []
        for place, cell in enumerate(self._tried):
            own = {n: v for n, v in self.trials[place].to_flat().items() if v != base[n]}
            status = outcomes[cell.key].status if cell.key in outcomes else "missing"
            found.append({"settings": own, "status": status, "score": self._scores.get(place)})
        return found


@dataclass
class ReferenceLine(Line):
    """A central method; it is tuned inside its one cell."""

    data: Dataset
    path: Path
    name: str
    store: Store

    @property
    def size(self) -> int:
        return 1

    @property
    def _cell(self) -> Cell:
        return Cell.reference(self.data, self.name)

    def jobs(self, outcomes: Outcomes) -> list[Job]:
        return [Job(self._cell, self.path)]

    def row(self, outcomes: Outcomes) -> Row:
        row = Row(self.name, "reference", "missing", about={"what": METHODS[self.name].about})
        _note(row, [("", self._cell)], outcomes)
        _measure(row, [self._cell], outcomes, self.store)
        if row.status == "done":
            row.settings = dict(outcomes[self._cell.key].values["result"]["params"])
        return row


def about(algorithm: type[Algorithm[Any]], config: Config) -> dict[str, str]:
    """What a reader must know beside the numbers: what the server saw, with which model scored."""
    return {
        "server_sees": "each user's own" if algorithm.reduce == "per-user" else "sums",
        "scored_with": algorithm.scoring(config),
        "negatives": str(config.to_flat().get("negatives", "clean")),
        "citation": algorithm.citation,
    }


def _note(row: Row, cells: Sequence[tuple[str, Cell]], outcomes: Outcomes) -> None:
    """A line for all cells that are not there for one reason."""
    reasons: dict[str, list[str]] = {}
    for name, cell in cells:
        outcome = outcomes.get(cell.key)
        if outcome is None:
            reasons.setdefault("not made yet", []).append(name)
        elif outcome.status != "done":
            reasons.setdefault(f"{outcome.status}: {outcome.line}", []).append(name)
    row.notes += [f"{', '.join(names)} {why}".strip() for why, names in reasons.items()]


def _measure(row: Row, cells: Sequence[Cell], outcomes: Outcomes, store: Store) -> list[int]:
    """Put what the finished cells say into the row; return their places."""
    known = {place: outcomes[cell.key] for place, cell in enumerate(cells) if cell.key in outcomes}
    done = [place for place, outcome in known.items() if outcome.status == "done"]
    if done:
        ranks = [store.ranks(cells[place]) for place in done]
        row.measured = Measured.of(ranks, [known[place].values["result"] for place in done])
        row.status = "done" if len(done) == len(cells) else "partial"
    elif len(known) == len(cells):
        statuses = {outcome.status for outcome in known.values()}
        row.status = "failed" if "failed" in statuses else "infeasible"
    return done
