"""Making one cell: a run through `simulate`, or a reference."""

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecgel.client.store import load_ranks
from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import DataError, FedRecError, RunError, TooLargeError
from fedrecgel.server.run_folder import CONFIG
from fedrecgel.simulation.central.tuned import Reference, references
from fedrecgel.simulation.compare.plan import Cell
from fedrecgel.simulation.compare.store import Outcome, Status, Store
from fedrecgel.simulation.report import report_of_ranks
from fedrecgel.simulation.result import Result
from fedrecgel.simulation.rounds import MetricRow, series
from fedrecgel.simulation.run import simulate

__all__ = ["WINDOW", "make", "score"]

WINDOW = 3
"""Evaluations in a row whose mean is a trial's score: the highest of forty alone rewards noise."""

_LEFT_OUT = ("definitions", "comparable", "versions", "failures_by_site")
"""Entries of a result that say the same in every cell."""

OnRound = Callable[[dict[str, Any]], None]


def make(cell: Cell, data: Dataset, store: Store, on_round: OnRound) -> Outcome:
    """Make a cell, or go on with a half-made one, and keep how it ended; errors are outcomes."""
    ranks = None
    try:
        if cell.kind == "reference":
            outcome, ranks = _reference(cell, data)
        elif cell.kind == "trial":
            cost = _Cost(on_round)
            _run(cell, data, store.work(cell), cost)
            # What the run measured on the test items is not looked at: a trial only validates.
            (store.work(cell) / "result.json").unlink()
            outcome = Outcome("done", values={"seconds_per_round": cost.per_round})
        else:
            cost = _Cost(on_round)
            result = _run(cell, data, store.work(cell), cost)
            values = {**_short(result.values), "cpu_per_round": cost.per_round}
            outcome, ranks = Outcome("done", values={"result": values}), _ranks(result)
    except TooLargeError as error:
        outcome = Outcome("infeasible", str(error))
    except DataError as error:
        # References need what not all data have, such as times.
        status: Status = "infeasible" if cell.kind == "reference" else "failed"
        outcome = Outcome(status, str(error))
    except FedRecError as error:
        outcome = Outcome("failed", str(error))
    except MemoryError:
        outcome = Outcome("failed", "out of memory")
    except Exception as error:
        # A defect of one method must not end the comparison of the others.
        outcome = Outcome("failed", f"{type(error).__name__}: {error}".splitlines()[0])
    store.write(cell, outcome, ranks)
    return outcome


class _Cost:
    """Processor seconds from the first round that is made here to the last.

    The clock on the wall would measure the other cells as well; each runs on one thread.
    """

    def __init__(self, on_round: OnRound) -> None:
        self._on_round = on_round
        self._points: list[float] = []

    def __call__(self, line: dict[str, Any]) -> None:
        self._points.append(time.process_time())
        self._on_round(line)

    @property
    def per_round(self) -> float | None:
        """Seconds of a round; None of fewer than two rounds."""
        rounds = len(self._points) - 1
        return (self._points[-1] - self._points[0]) / rounds if rounds > 0 else None


def _run(cell: Cell, data: Dataset, folder: Path, on_round: OnRound) -> Result:
    # Every setting is given: no preset decides anything.
    whole = make_config(cell.name, {**cell.settings, **cell.limits, "seed": cell.seed})
    settings: dict[str, Any] = dict(whole.to_flat())
    begun = (folder / CONFIG).is_file()
    for resume in (True, False) if begun else (False,):
        try:
            return simulate(
                data,
                folder,
                algorithm=cell.name,
                preset="paper",
                log="none",
                on_round=on_round,
                resume=resume,
                **({} if resume else settings),
            )
        except RunError:
            if not resume:
                raise
            shutil.rmtree(folder)  # killed while it was writing: from the start
    raise AssertionError


def _ranks(result: Result) -> NDArray[np.int64]:
    ranks = load_ranks(result.path / "private")
    users = np.flatnonzero(ranks[:, 0] >= 0)
    return np.column_stack([users, ranks[users, :4]])


def _reference(cell: Cell, data: Dataset) -> tuple[Outcome, NDArray[np.int64]]:
    found = references(data, [cell.name])[0][0]
    sampled, full = found.ranks["sampled"], found.ranks["full"]
    columns = (full.users, sampled.greater, sampled.ties, full.greater, full.ties)
    return Outcome("done", values={"result": _reference_result(found, data)}), np.column_stack(
        columns
    )


def _reference_result(found: Reference, data: Dataset) -> dict[str, Any]:
    everybody = np.ones(data.num_users, dtype=bool)
    report = report_of_ranks(
        data,
        found.ranks,
        found.lists,
        trained_users=everybody,
        trained_items=np.ones(data.num_items, dtype=bool),
    )
    tuned = {"params": dict(found.params), "trials": len(found.trials), "seconds": found.seconds}
    return {**_short(report), **tuned}


def _short(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in _LEFT_OUT}


def score(history: Sequence[MetricRow], select_by: str) -> float | None:
    """Highest mean of `WINDOW` validation values in a row (or of all, if fewer); None without."""
    ranking, _, name = select_by.partition(".")
    points = series(history, "validation", ranking, name)
    values = [value for _, value in points]
    size = min(WINDOW, len(values))
    if not size:
        return None
    return max(sum(values[i : i + size]) / size for i in range(len(values) - size + 1))
