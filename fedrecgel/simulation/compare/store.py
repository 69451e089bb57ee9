"""Cells on disk: a folder for each, complete once its ``cell.json`` is there.

A cell that is being made lies in a folder that ends in ``.part``; its last checkpoint is gone on
from. ``ranks.npy`` holds where each user's test item was ranked: it is as private as the data.
"""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.manifest import file_hash
from fedrecgel.common.errors import RunError
from fedrecgel.common.json_file import write_json
from fedrecgel.simulation.compare.plan import Cell
from fedrecgel.simulation.rounds import MetricRow

__all__ = ["CELL", "HISTORY", "RANKS", "Outcome", "Status", "Store"]

FORMAT = 2
CELL, RANKS, HISTORY = "cell.json", "ranks.npy", "metrics.jsonl"

Status = Literal["done", "failed", "infeasible"]


@dataclass(frozen=True)
class Outcome:
    """How a cell ended.

    Attributes
    ----------
    line
        Why it failed, or why it is infeasible; one line.
    values
        ``result`` of a seed or reference; ``seconds_per_round`` of a trial; these, ``rounds`` and
        ``estimate`` (seconds) of one that takes too long; nothing of one that does not fit.
    """

    status: Status
    line: str = ""
    values: dict[str, Any] = field(default_factory=dict)


class Store:
    """The cells of one output folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def open(cls, out: Path) -> "Store":
        """The folder ``cells`` in ``out``, made if there is none, for its owner alone."""
        if out.is_file():
            raise RunError(f"{out} is a file; choose another --out")
        folder = out / "cells"
        if not folder.is_dir() and out.is_dir() and any(out.iterdir()):
            raise RunError(f"{out} holds something that is no comparison; choose another --out")
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create {folder}: {error.strerror}") from None
        return cls(folder)

    def path(self, cell: Cell) -> Path:
        """Where a finished cell lies."""
        return self.folder / cell.key

    def work(self, cell: Cell) -> Path:
        """Where it is made."""
        return self.folder / f"{cell.key}.part"

    def read(self, cell: Cell) -> Outcome | None:
        """How a cell ended; None if it is not there, not finished, or any of its files damaged."""
        try:
            told = json.loads((self.path(cell) / CELL).read_text(encoding="utf-8"))
            if told["format"] != FORMAT or told["status"] not in get_args(Status):
                return None
            for name, digest in told["files"].items():
                if file_hash(self.path(cell) / name) != digest:
                    return None
            outcome = Outcome(told["status"], told["line"], dict(told["values"]))
            if outcome.status == "infeasible" and outcome.values:
                float(outcome.values["estimate"])
            if outcome.status == "done" and cell.kind != "trial":
                int(outcome.values["result"]["users"]["evaluated"])
            return outcome
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def ranks(self, cell: Cell) -> NDArray[np.int64]:
        """(n, 5) user, rivals above and equal among candidates, above and equal in the catalogue.

        Of a finished run or reference.
        """
        ranks = np.load(self.path(cell) / RANKS, allow_pickle=False)
        return np.asarray(ranks, dtype=np.int64)

    def history(self, cell: Cell) -> list[MetricRow]:
        """Lines of the evaluated rounds of a finished run."""
        text = (self.path(cell) / HISTORY).read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def write(self, cell: Cell, outcome: Outcome, ranks: NDArray[np.int64] | None = None) -> None:
        """Put a finished cell in place of what was there."""
        ready = self.folder / f".{cell.key}.{os.getpid()}"
        shutil.rmtree(ready, ignore_errors=True)
        ready.mkdir(mode=0o700)
        history = self.work(cell) / HISTORY
        if history.is_file():
            shutil.copy(history, ready / HISTORY)
        if ranks is not None:
            np.save(ready / RANKS, ranks.astype(np.int32))
        told = {"format": FORMAT, "status": outcome.status, "line": outcome.line}
        files = {path.name: file_hash(path) for path in sorted(ready.iterdir())}
        what = {"cell": cell.to_json(), "values": outcome.values, "files": files}
        write_json(ready / CELL, {**told, **what})
        shutil.rmtree(self.path(cell), ignore_errors=True)
        os.replace(ready, self.path(cell))
        shutil.rmtree(self.work(cell), ignore_errors=True)
