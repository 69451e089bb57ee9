"""What a site answers: lists and scores from one shared model, the private store and the file.

Whose private parameters answer is `Source`: those of the chosen round where the store has them; for
others with interactions, parameters fitted here, once, to all of these; for everybody else the
site's popular items.
"""

import enum
import os
import sys
import threading
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.client.published import Published
from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.fit import fit_private
from fedrecgel.common.errors import DataError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.state import State, size_of
from fedrecgel.serve.best import best_items
from fedrecgel.serve.bounded import Bounded
from fedrecgel.serve.people import People
from fedrecgel.serve.priority import Priority

SCORES_BYTES = 64 << 20
"""Scores and private states that are held at most, each."""
WAITING = 4
"""So many users wait for a fit at most; others get the popular items meanwhile."""
FIRST = torch.zeros(1, dtype=torch.int64)


class Source(enum.Enum):
    """Where scores come from."""

    KEPT = "kept"
    FITTED = "fitted"
    POPULARITY = "popularity"


class ChosenStates(Protocol):
    """What serving needs of a private store."""

    def load_chosen(self, users: Ints) -> tuple[State, NDArray[np.bool_]]:
        """States of the chosen round, of those users that had been trained, and which they were."""


@dataclass(frozen=True)
class Scored:
    """An item and its score; ``estimated`` where the model does not know the item."""

    item: str
    score: float
    estimated: bool


@dataclass(frozen=True)
class Answer:
    """Items in order, and where their scores come from."""

    items: list[Scored]
    source: Source


class Model:
    """One published model with the site's people; immutable but for its caches.

    Parameters
    ----------
    store
        Private state of the model's experiment, read at every request: somebody who was forgotten
        is forgotten at once. Its positions are those of ``people``.
    """

    def __init__(self, published: Published, people: People, store: ChosenStates) -> None:
        self.published, self.people = published, people
        self._store = store
        self._algorithm = published.algorithm
        self._shared = self._algorithm.prepared(published.shared)
        item_bytes = 8 * len(people.item_ids)
        state_bytes = sum(map(size_of, self._algorithm.private_template.values()))
        each = item_bytes + state_bytes
        self._scores: Bounded[tuple[State, Tensor]] = Bounded(SCORES_BYTES // each)
        self._fitted: Bounded[State] = Bounded(SCORES_BYTES // max(1, state_bytes))
        # Threads of their own: a request's thread is any of many, and each would keep memory.
        self._scorers = ThreadPoolExecutor(_cores(), "score")
        self._priority = Priority()
        self._fits = ThreadPoolExecutor(1, "fit")
        self._waiting: dict[int, Future[State]] = {}
        self._guard = threading.Lock()
        self._warm_up()

    def recommend(
        self, user: str, k: int, exclude: Collection[str] = (), *, repeat: bool = False
    ) -> Answer:
        """The ``k`` best items for a user, without what they have unless ``repeat``."""
        people, position = self.people, self.people.position(user)
        scores, source = self._scores_of(position)
        out = [people.items[item] for item in exclude if item in people.items]
        seen = np.array(out, dtype=np.int64)
        if position is not None and not repeat:
            seen = np.concatenate((seen, people.items_of(position)))
        return Answer(self._scored(best_items(scores, k, seen), scores, source), source)

    def score(self, user: str, items: Sequence[str]) -> Answer:
        """Scores of these items.

        Raises
        ------
        DataError
            When neither the model nor anybody at the site knows an item.
        """
        people = self.people
        unknown = [item for item in items if item not in people.items]
        if unknown:
            known = len(people.item_ids)
            raise DataError(f"no item '{unknown[0]}' among the {known:,} items that are known here")
        scores, source = self._scores_of(people.position(user))
        chosen = np.array([people.items[item] for item in items], dtype=np.int64)
        return Answer(self._scored(chosen, scores, source), source)

    def _scored(self, chosen: Ints, scores: Tensor, source: Source) -> list[Scored]:
        ids, by_model = self.people.item_ids, source is not Source.POPULARITY
        return [
            Scored(ids[item], score, by_model and item >= self.people.num_items)
            for item, score in zip(chosen.tolist(), scores[chosen].tolist(), strict=True)
        ]

    def _scores_of(self, position: int | None) -> tuple[Tensor, Source]:
        """(M + E,) scores of all items for a user."""
        found = None if position is None else self._private(position)
        if position is None or found is None:
            return self.people.popularity, Source.POPULARITY
        private, source = found
        held = self._scores.get(position)
        if held is not None and _same(held[0], private):
            return held[1], source
        with self._priority.answering():
            scores = self._scorers.submit(self._compute, position, private).result()
        self._scores.put(position, (private, scores))
        return scores, source

    def _private(self, position: int) -> tuple[State, Source] | None:
        """Private parameters (1, ...) of a user and their source; None: the site has none now."""
        state, kept = self._store.load_chosen(np.array([position]))
        if kept[0]:
            return state, Source.KEPT
        fitted = self._fit(position)
        return None if fitted is None else (fitted, Source.FITTED)

    def _fit(self, position: int) -> State | None:
        """Parameters fitted once to a user's items; None without any, or where too many wait."""
        if not len(self.people.interactions(position).items):
            return None
        with self._guard:
            # In one look with who waits: a fit that ends between two looks would be made again.
            fitted = self._fitted.get(position)
            if fitted is not None:
                return fitted
            future = self._waiting.get(position)
            if future is None:
                if len(self._waiting) >= WAITING:
                    return None
                future = self._fits.submit(self._fit_now, position)
                self._waiting[position] = future
        return future.result()

    def _fit_now(self, position: int) -> State:
        try:
            download = self._download(position, self.published.shared)
            state = fit_private(
                self._algorithm,
                download,
                self.people.interactions(position),
                between=self._priority.let_pass,
            )
            self._fitted.put(position, state)
        finally:
            with self._guard:
                del self._waiting[position]
        return state

    def _download(self, position: int, shared: State) -> Download:
        return self.published.download(self.people.user_ids[position], shared)

    def _compute(self, position: int, private: State) -> Tensor:
        download = self._download(position, self._shared)
        view = self._algorithm.personal_view(download, private)
        with torch.inference_mode():
            return self.people.with_new(view.catalogue(FIRST)[0])

    def _warm_up(self) -> None:
        """Load lazily made parts and touch the memory, before anybody waits for it."""
        people = self.people
        _ = people.popularity, people.items, people.position("")
        if people.user_ids:
            keys = people.interactions(0).keys
            self._scorers.submit(self._compute, 0, self._algorithm.init_private(keys)).result()


def _same(one: State, other: State) -> bool:
    return one is other or all(torch.equal(one[name], other[name]) for name in other)


def _cores() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
