"""Users and items with too few interactions: left out in one pass, or until none is left."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.split import Events


@dataclass(frozen=True)
class Minimum:
    """How many interactions users and items need."""

    user: int = 5
    item: int = 0
    repeat: bool = False
    """Whether to go on until everybody left has as many (k-core)."""

    def words(self) -> str:
        """Say the rule."""
        if self.repeat:
            return f"{self.user}-core: users and items in turn, until all have {self.user}"
        if self.item > 1:
            return "users and items, counted together before any is left out; single pass"
        return "users, single pass; items are not filtered"


@dataclass(frozen=True)
class Filtered:
    """What is left, and what each rule cost."""

    events: Events
    users: int
    """Users left out for having too few rows."""
    items: int
    rounds: int


def active_users(events: Events, num_users: int, minimum: int) -> NDArray[np.bool_]:
    """Users with at least ``minimum`` rows, as a mask ``(N,)``."""
    return np.bincount(events.user, minlength=num_users) >= max(minimum, 1)


def keep_minimum(events: Events, minimum: Minimum) -> Filtered:
    """Leave out users and items below the minimum.

    The counts say which were below it; with a single pass others may be below it afterwards, or
    gone because all they had is gone.
    """
    users = items = rounds = 0
    while True:
        user_counts, item_counts = np.bincount(events.user), np.bincount(events.item)
        few_users = (user_counts < minimum.user) & (user_counts > 0)
        few_items = (item_counts < minimum.item) & (item_counts > 0)
        if not few_users.any() and not few_items.any():
            return Filtered(events, users, items, rounds)
        rounds += 1
        users, items = users + int(few_users.sum()), items + int(few_items.sum())
        events = events.take(~few_users[events.user] & ~few_items[events.item])
        if not minimum.repeat or not len(events):
            return Filtered(events, users, items, rounds)
