"""A process that makes cells: asked in JSON lines on stdin, it answers in JSON lines on stdout.

It is one of the processes of `fedrecgel.simulation.compare.pool`, and ends with it: when stdin ends
the process leaves at once, in the middle of a cell, whose checkpoint is kept.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

__all__ = ["main"]


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
        begin = time.monotonic()
        _tell(answers, {"begun": True})

        def on_round(line: dict[str, Any], begin: float = begin) -> None:
            _tell(answers, {"round": line["round"], "elapsed": time.monotonic() - begin})

        data = Dataset.load(order["data"])
        make(Cell(**order["cell"]), data, Store(Path(order["store"])), on_round)
        _tell(answers, {"finished": True})


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
