"""A process that makes cells: asked in JSON lines on stdin, it answers in JSON lines on stdout.

It is one of the processes of `fedrecgel.simulation.compare.pool`, and ends with it: when stdin ends
the process leaves at once, in the middle of a cell, whose checkpoint is kept.
"""

import importlib
import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

__all__ = ["main"]

BEAT = 0.25
"""Seconds between two signs of life."""


def main() -> None:
    """Answer until stdin ends."""
    # What libraries print must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1, encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asked: SimpleQueue[dict[str, Any]] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()

    import torch

    from fedrecgel.common.data.dataset import Dataset
    from fedrecgel.simulation.compare.plan import Cell
    from fedrecgel.simulation.compare.store import Store
    from fedrecgel.simulation.compare.work import make

    torch.set_num_threads(1)
    while True:
        order = asked.get()
        with _Telling(answers) as telling:
            data = Dataset.load(order["data"])
            if order["module"]:  # it registers an algorithm; what it lacks is said by `make`
                with suppress(ImportError):
                    importlib.import_module(order["module"])
            make(Cell(**order["cell"]), data, Store(Path(order["store"])), telling.on_round)
        _tell(answers, {"finished": True})


class _Telling:
    """Tells of each round, and in between, how much processor time a cell has had.

    Not the clock on the wall: what else a machine does must not make a cell infeasible.
    """

    def __init__(self, answers: TextIO) -> None:
        self._answers, self._begin = answers, time.process_time()
        self._done, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def __enter__(self) -> "_Telling":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def on_round(self, line: dict[str, Any]) -> None:
        self._say(round=line["round"])

    def _beat(self) -> None:
        while not self._done.wait(BEAT):
            self._say()

    def _say(self, **more: int) -> None:
        with self._lock:
            _tell(self._answers, {**more, "elapsed": time.process_time() - self._begin})


def _listen(asked: "SimpleQueue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        asked.put(json.loads(line))
    # Whoever asked is gone, perhaps killed: go on with nothing that nobody waits for.
    os._exit(0)


def _tell(answers: TextIO, told: dict[str, Any]) -> None:
    try:
        answers.write(json.dumps(told) + "\n")
    except BrokenPipeError:
        os._exit(0)


if __name__ == "__main__":
    main()
