"""Which model answers now: watched once a second, loaded beside the old one, taken over whole."""

import sys
import threading
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Protocol

from fedrecgel.common.errors import FedRecError, RunError
from fedrecgel.serve.model import Model

EVERY = 1.0
"""Seconds between two looks."""


class Place(Protocol):
    """Where models come from."""

    def stamp(self) -> Hashable:
        """Something cheap that is another value when `load` would give another model."""

    def load(self) -> Model:
        """The model that is there now; a `FedRecError` when there is none."""


class Current:
    """The model in use.

    A request takes the reference once and keeps what it took: a takeover is one assignment, and
    nobody waits for it. A model that cannot be loaded is reported once; the old one stays.
    """

    def __init__(self, place: Place, say: Callable[[str], None] | None = None) -> None:
        self._place = place
        self._say = say or _say
        self._model: Model | None = None
        self._stamp: Hashable = None
        self._reason = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)
        self.on_ready: Callable[[], None] = lambda: None

    @property
    def ready(self) -> bool:
        """Whether there is a model."""
        return self._model is not None

    def model(self) -> Model:
        """The model in use.

        Raises
        ------
        RunError
            When there is none yet.
        """
        model = self._model
        if model is None:
            raise RunError(self._reason or "no model yet")
        return model

    def refresh(self, *, must: bool = False) -> bool:
        """Take over what is new; whether there was something. ``must``: raise what prevents it."""
        stamp = self._place.stamp()
        if stamp == self._stamp:
            return False
        try:
            model = self._place.load()
        except FedRecError as error:
            if must:
                raise
            # Not noted as seen: a file that is half written now may be whole in a second.
            if str(error) != self._reason:
                self._reason = str(error)
                self._say(self._reason)
            return False
        self._model, self._stamp, self._reason = model, stamp, ""
        self._say(describe(model))
        self.on_ready()
        return True

    def start(self) -> None:
        """Look every second from now on."""
        self._thread.start()

    def close(self) -> None:
        """Look no more."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(EVERY):
            self.refresh()


def describe(model: Model) -> str:
    """One line that names no user."""
    published, people = model.published, model.people
    new = len(people.item_ids) - people.num_items
    more = f" and {new:,} new ones" if new else ""
    return (
        f"model: {published.experiment.algorithm}, round {published.round} of experiment "
        f"{published.experiment.id}; {people.num_items:,} items{more}, "
        f"{len(people.user_ids):,} users with interactions"
    )


def file_stamp(*paths: Path) -> Hashable:
    """Changes whenever one of the files is replaced or written."""
    return tuple(_stat(path) for path in paths)


def _stat(path: Path) -> Hashable:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
