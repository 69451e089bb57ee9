"""Which interactions are held out: the last one or the last share of each user, or all from a day.

The order of a user's interactions is their time. Equal and missing times are ordered by a hash of
(seed, user id, item id): not by the order of the file, and not by the id itself, because low ids
are often popular ones. A missing time counts as older than any known one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.ordering import order_by
from fedrecgel.common.hashing import Keys, mix

SPLITS = ("leave-one-out", "time", "share")
PARTS = ("train", "validation", "test")
TRAIN, VALIDATION, TEST = 0, 1, 2


@dataclass(frozen=True)
class Events:
    """Interactions as parallel arrays of length ``R``; ``time`` counts where ``timed`` is true."""

    user: NDArray[np.int64]
    item: NDArray[np.int64]
    time: NDArray[np.int64] | NDArray[np.float64]
    timed: NDArray[np.bool_]

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> "Events":
        """Return the chosen rows."""
        return Events(self.user[rows], self.item[rows], self.time[rows], self.timed[rows])

    def __len__(self) -> int:
        return len(self.user)

    @property
    def users(self) -> NDArray[np.int64]:
        """Distinct users, ascending."""
        return np.flatnonzero(np.bincount(self.user))

    @property
    def items(self) -> NDArray[np.int64]:
        """Distinct items, ascending."""
        return np.flatnonzero(np.bincount(self.item))

    def renumbered(self, *, items: bool = True) -> "Events":
        """Return the events with users (and ``items``) numbered from 0 without gaps."""
        item = _renumber(self.item) if items else self.item
        return Events(_renumber(self.user), item, self.time, self.timed)


def _renumber(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    there = np.bincount(numbers) > 0
    return (np.cumsum(there) - 1)[numbers]


@dataclass(frozen=True)
class Split:
    """Events in chronological order of each user, and the part each belongs to."""

    events: Events
    part: NDArray[np.int8]
    """``(R,)`` TRAIN, VALIDATION or TEST."""
    tied_users: int
    """Users whose held-out items were told from older ones by the tie rule alone."""

    def take(self, rows: NDArray[np.bool_]) -> "Split":
        """Return the chosen rows."""
        events, part = self.events.take(rows), self.part[rows]
        return Split(events, part, _count_tied_users(events, part))

    def renumbered(self, *, items: bool = True) -> "Split":
        """Return the split with users (and ``items``) numbered from 0 without gaps."""
        return Split(self.events.renumbered(items=items), self.part, self.tied_users)


def one_per_pair(events: Events, *, latest: bool = True) -> Events:
    """Keep one row of every (user, item), the latest or the earliest, sorted by user and item.

    A missing time is older than any known one.
    """
    order = order_by(events.user, events.item, events.timed, events.time)
    user, item = events.user[order], events.item[order]
    differs = (user[1:] != user[:-1]) | (item[1:] != item[:-1])
    edge = np.ones(min(len(order), 1), dtype=bool)
    chosen = np.concatenate([differs, edge] if latest else [edge, differs])
    return events.take(order[chosen])


def hashed_ties(seed: int, events: Events, user_keys: Keys, item_keys: Keys) -> Keys:
    """Return the default tie rule: ``(R,)`` hashes of (seed, user, item)."""
    return mix(seed, "tie", user_keys[events.user], item_keys[events.item])


def earliest_item_last(events: Events) -> NDArray[np.int64]:
    """Return the published preparation's tie rule, for events in the order of the file.

    It numbers the items as they first appear in the file, and of equal times the lowest number is
    the latest.
    """
    items, first = np.unique(events.item, return_index=True)
    return -first[np.searchsorted(items, events.item)]


def earliest_row_last(raw: Events, events: Events) -> NDArray[np.int64]:
    """Return the tie rule of PFedRec's preparation and its kin, for events taken from ``raw``.

    They rank each user's rows from the newest, and of equal times the row that stands first in the
    file comes first: it is the latest.
    """
    stride = int(raw.item.max(initial=0)) + 1
    pairs, first = np.unique(raw.user * stride + raw.item, return_index=True)
    ties: NDArray[np.int64] = -first[np.searchsorted(pairs, events.user * stride + events.item)]
    return ties


def chronological(events: Events, ties: NDArray[np.generic]) -> Events:
    """Sort by user, and each user's events by time, then by ``ties`` (R,)."""
    time = np.where(events.timed, events.time, 0)
    return events.take(order_by(events.user, events.timed, time, ties))


def leave_one_out(events: Events, *, validation: bool = True) -> Split:
    """Hold out each user's last event (test) and the second last (validation).

    ``events`` are in chronological order. Users with two events have no validation item, users
    with one have neither: nobody is left without training items.
    """
    from_end, size = _places(events)
    part = np.full(len(events), TRAIN, dtype=np.int8)
    part[(from_end == 0) & (size >= 2)] = TEST
    if validation:
        part[(from_end == 1) & (size >= 3)] = VALIDATION
    return Split(events, part, _count_tied_users(events, part))


def last_share(events: Events, share: float) -> Split:
    """Hold out the last ``share`` of each user's events (test), and as many before (validation).

    Of n events ``share * n``, rounded, at least one; users with few are treated as by
    `leave_one_out`.
    """
    from_end, size = _places(events)
    held = np.maximum(np.floor(share * size + 0.5).astype(np.int64), 1)
    held = np.minimum(held, np.maximum((size - 1) // 2, 1))
    part = np.full(len(events), TRAIN, dtype=np.int8)
    part[(from_end < 2 * held) & (size >= 3)] = VALIDATION
    part[(from_end < held) & (size >= 2)] = TEST
    return Split(events, part, _count_tied_users(events, part))


def from_moment(events: Events, cut: float) -> Split:
    """Hold out everything from ``cut`` on for the test, and as much before it for validation.

    Events without time count as older than the cut. Users without train events are in the split;
    leaving them out is up to the caller.
    """
    is_test = events.timed & (events.time >= cut)
    part = np.full(len(events), TRAIN, dtype=np.int8)
    older = np.sort(events.time[events.timed & ~is_test])
    count = int(is_test.sum())
    if 0 < count < len(older):
        part[events.timed & (events.time >= older[-count])] = VALIDATION
    part[is_test] = TEST
    return Split(events, part, _count_tied_users(events, part))


def _places(events: Events) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return for each row how many of its user follow, and how many rows the user has."""
    from_end = _positions_from_end(events.user)
    return from_end, from_end + _positions_from_end(events.user[::-1])[::-1] + 1


def _positions_from_end(user: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count for each row of grouped rows how many of its group follow."""
    if not len(user):
        return np.empty(0, dtype=np.int64)
    ends = np.flatnonzero(np.concatenate([user[1:] != user[:-1], [True]]))
    sizes = np.diff(ends, prepend=-1)
    return np.repeat(ends, sizes) - np.arange(len(user))


def _count_tied_users(events: Events, part: NDArray[np.int8]) -> int:
    """Count users where a held-out event has the time of the event before it."""
    same = events.user[1:] == events.user[:-1]
    both_missing = ~events.timed[1:] & ~events.timed[:-1]
    equal = (events.time[1:] == events.time[:-1]) & events.timed[1:] & events.timed[:-1]
    tied = same & (both_missing | equal) & (part[1:] != part[:-1])
    return len(np.unique(events.user[1:][tied]))
