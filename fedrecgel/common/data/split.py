"""Leave-one-out: the last item of a user is for the test, the one before it for validation.

The order of a user's interactions is their time. Equal and missing times are ordered by a hash of
(seed, user id, item id): not by the order of the file, and not by the id itself, because low ids
are often popular ones. A missing time counts as older than any known one.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.hashing import Keys, mix

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

    def renumbered(self) -> "Events":
        """Return the events with users and items numbered from 0 without gaps."""
        user = np.searchsorted(self.users, self.user)
        return Events(user, np.searchsorted(self.items, self.item), self.time, self.timed)


@dataclass(frozen=True)
class Split:
    """Events in chronological order of each user, and the part each belongs to."""

    events: Events
    part: NDArray[np.int8]
    """``(R,)`` TRAIN, VALIDATION or TEST."""
    tied_users: int
    """Users whose held-out items were told from older ones by the tie rule alone."""


def latest_per_pair(events: Events) -> Events:
    """Keep one row of every (user, item): the latest; a known time beats a missing one."""
    order = np.lexsort((events.time, events.timed, events.item, events.user))
    user, item = events.user[order], events.item[order]
    last = np.ones(len(order), dtype=bool)
    last[:-1] = (user[1:] != user[:-1]) | (item[1:] != item[:-1])
    return events.take(order[last])


def active_users(events: Events, num_users: int, minimum: int) -> NDArray[np.bool_]:
    """Users with at least ``minimum`` rows, as a mask ``(N,)``."""
    return np.bincount(events.user, minlength=num_users) >= max(minimum, 1)


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


def leave_one_out(events: Events, ties: NDArray[np.generic], *, validation: bool = True) -> Split:
    """Order each user's events and hold out the last (test) and the second last (validation).

    Users with two events have no validation item, users with one have neither: nobody is left
    without training items.
    """
    time = np.where(events.timed, events.time, 0)
    order = np.lexsort((ties, time, events.timed, events.user))
    events = events.take(order)
    from_end = _positions_from_end(events.user)
    size = from_end + _positions_from_end(events.user[::-1])[::-1] + 1
    part = np.full(len(events), TRAIN, dtype=np.int8)
    part[(from_end == 0) & (size >= 2)] = TEST
    if validation:
        part[(from_end == 1) & (size >= 3)] = VALIDATION
    return Split(events, part, _count_tied_users(events, part))


def _positions_from_end(user: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count for each row of grouped rows how many of its group follow."""
    index = np.arange(len(user))
    is_last = np.ones(len(user), dtype=bool)
    is_last[:-1] = user[1:] != user[:-1]
    ends = np.flatnonzero(is_last)
    return ends[np.searchsorted(ends, index)] - index


def _count_tied_users(events: Events, part: NDArray[np.int8]) -> int:
    """Count users where a held-out event has the time of the event before it."""
    same = events.user[1:] == events.user[:-1]
    both_missing = ~events.timed[1:] & ~events.timed[:-1]
    equal = (events.time[1:] == events.time[:-1]) & events.timed[1:] & events.timed[:-1]
    tied = same & (both_missing | equal) & (part[1:] != TRAIN)
    return len(np.unique(events.user[1:][tied]))
