"""What a person sees while a run goes on: a bar on a terminal, else a line per round."""

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self, TextIO

from tqdm import tqdm

from fedrecgel.common.errors import ConfigError
from fedrecgel.server.exchange import Failure

LOGS = ("auto", "bar", "text", "json", "none")
TOLD = 5
"""Failures of one kind that are shown; in a simulation thousands of nodes may fail alike."""


class Progress:
    """Shows rounds on stderr; nothing of a single user is in it.

    Parameters
    ----------
    rounds
        How many there will be.
    log
        ``bar``; ``text``: a line per round; ``json``: the line of ``metrics.jsonl``; ``none``; or
        ``auto``: a bar on a terminal, else text.
    """

    def __init__(self, rounds: int, log: str = "auto", stream: TextIO | None = None) -> None:
        if log not in LOGS:
            raise ConfigError(f"unknown log '{log}'; choose from {', '.join(LOGS)}")
        self._stream = stream or sys.stderr
        self._log = log
        if log == "auto":
            self._log = "bar" if self._stream.isatty() else "text"
        self._rounds = rounds
        self._bar: tqdm[Any] = tqdm(
            total=rounds,
            unit="round",
            disable=self._log != "bar",
            dynamic_ncols=True,
            file=self._stream,
        )
        self._shown: dict[str, str] = {}
        self._failures: dict[str, set[tuple[str, str]]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._bar.close()

    def on_round(self, line: dict[str, Any]) -> None:
        """Show a round."""
        if self._log == "json":
            self._print(json.dumps(line, allow_nan=False))
        elif self._log == "text":
            self._print(self._text(line))
        elif self._log == "bar":
            self._shown.update(_figures(line))
            self._bar.set_postfix(self._shown, refresh=False)
            self._bar.update(line["round"] - self._bar.n)

    def on_failure(self, site: str, failure: Failure) -> None:
        """Show each failure once, with what the node said, `TOLD` of a kind; all are counted.

        One line, unless the node sent the traceback of a defect that no other sent before.
        """
        told = self._failures.setdefault(failure.reason, set())
        if self._log == "none" or len(told) > TOLD or (site, failure.detail) in told:
            return
        detail = failure.detail.strip()
        last = detail.rpartition("\n")[2]
        if any(last == other.strip().rpartition("\n")[2] for _, other in told):
            detail = last  # the same defect elsewhere
        told.add((site, failure.detail))
        if len(told) > TOLD:
            self.say(f"more of '{failure.reason}' is counted, not told")
            return
        if self._log == "json":
            line = {"failure": failure.reason, "site": site, "detail": detail}
            self._print(json.dumps(line))
            return
        between = "\n" if "\n" in detail else ": "
        self._print(f"{site}: {failure.reason}{between if detail else ''}{detail}")

    def say(self, text: str) -> None:
        """One line beside the rounds."""
        if self._log not in ("json", "none"):
            self._print(text)

    def _text(self, line: dict[str, Any]) -> str:
        figures = " ".join(f"{name} {value}" for name, value in _figures(line).items())
        failed = f" failures {line['failures']}" if line["failures"] else ""
        dropped = f" dropped {line['dropped']}" if line["dropped"] else ""
        return (
            f"round {line['round']}/{self._rounds} {figures} users {line['users']}"
            f"{failed}{dropped} {line['round_seconds']:.2f} s"
        )

    def _print(self, text: str) -> None:
        tqdm.write(text, file=self._stream)


def _figures(line: dict[str, Any]) -> dict[str, str]:
    found = {}
    if line["loss"] is not None:
        found["loss"] = f"{line['loss']:.4f}"
    for split in ("validation", "test"):
        if split in line:
            value, over = line[split]["sampled"]["hr@10"]["value"], line.get("evaluated")
            found[f"{split} HR@10"] = "-" if value is None else f"{value:.4f}"
            if over and over["users"] < over["eligible"]:
                found[f"{split} HR@10"] += f" (of {over['users']} of {over['eligible']} users)"
    return found


@contextmanager
def interruptible(say: Callable[[str], None]) -> Iterator[Callable[[], bool]]:
    """Turn a first Ctrl-C into a wish to stop, which the yielded function tells; a second stops.

    Outside the main thread, where signals cannot be caught, nothing changes.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def on_interrupt(number: int, frame: object) -> None:
        if asked.is_set():
            raise KeyboardInterrupt
        asked.set()
        say("stopping after this round, which will be saved; Ctrl-C again stops at once")

    before = signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
