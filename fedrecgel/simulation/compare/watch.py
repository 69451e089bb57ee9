"""What a person sees of a comparison: a bar on a terminal, else a line for each cell."""

import json
import sys
import time
from types import TracebackType
from typing import Any, Self, TextIO

from tqdm import tqdm

from fedrecgel.common.errors import ConfigError
from fedrecgel.simulation.compare.pool import Job
from fedrecgel.simulation.compare.store import Outcome
from fedrecgel.simulation.progress import LOGS

__all__ = ["Watch"]


class Watch:
    """Shows cells on stderr.

    Parameters
    ----------
    cells
        How many there are in all.
    there
        How many need not be made.
    """

    def __init__(
        self, cells: int, there: int, log: str = "auto", stream: TextIO | None = None
    ) -> None:
        if log not in LOGS:
            raise ConfigError(f"unknown log '{log}'; choose from {', '.join(LOGS)}")
        self._stream = stream or sys.stderr
        self._log = log
        if log == "auto":
            self._log = "bar" if self._stream.isatty() else "text"
        self._cells, self._done = cells, there
        self._rounds: dict[str, tuple[int, float]] = {}
        self._bar: tqdm[Any] = tqdm(
            total=cells,
            initial=there,
            unit="cell",
            disable=self._log != "bar",
            dynamic_ncols=True,
            file=self._stream,
        )
        if there and self._log == "text":
            print(f"{there} of {cells} cells are there already", file=self._stream)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def on_round(self, job: Job, round: int) -> None:
        """Note how far a cell is."""
        begin = self._rounds.get(job.cell.key, (0, time.monotonic()))[1]
        self._rounds[job.cell.key] = (round, begin)
        if self._log == "bar":
            running = f"{_name(job)} {round}/{job.rounds}"
            self._bar.set_postfix_str(running, refresh=True)

    def ended(self, job: Job, outcome: Outcome) -> None:
        """Count a cell; one that is not done is told with its line."""
        self._done += 1
        self._bar.update(1)
        _, begin = self._rounds.pop(job.cell.key, (0, time.monotonic()))
        line = f": {outcome.line}" if outcome.line else ""
        if self._log == "json":
            told = {"cell": job.cell.key, "status": outcome.status, "line": outcome.line}
            tqdm.write(json.dumps(told), file=self._stream)
        elif self._log == "text" or (self._log == "bar" and outcome.status != "done"):
            count = f"[{self._done}/{self._cells}] " if self._log == "text" else ""
            took = f" ({time.monotonic() - begin:.0f} s)" if job.rounds else ""
            tqdm.write(f"{count}{_name(job)} {outcome.status}{line}{took}", file=self._stream)


def _name(job: Job) -> str:
    cell = job.cell
    which = f" seed {cell.seed}" if cell.kind == "seed" else f" {cell.kind}"
    return f"{cell.data_name} {cell.name}{which}"
