"""The training interactions of a group of users, as flat arrays with offsets."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.hashing import Keys

Ints = NDArray[np.int64]


def ragged_take(
    flat: NDArray[np.integer], offsets: Ints, rows: Ints
) -> tuple[NDArray[np.integer], Ints]:
    """Rows of a ragged array ``(flat, offsets)``, again as ``(flat, offsets)``."""
    lengths = offsets[rows + 1] - offsets[rows]
    new = np.concatenate(([0], np.cumsum(lengths)))
    index = np.arange(new[-1]) + np.repeat(offsets[rows] - new[:-1], lengths)
    return flat[index], new


@dataclass(frozen=True)
class Interactions:
    """Who interacted with what, for ``U`` users.

    Attributes
    ----------
    items : (T,) int
        Item indices of all users, one user after the other. A pair may occur more than once.
    offsets : (U + 1,) int64
        User ``u`` has ``items[offsets[u]:offsets[u + 1]]``.
    keys : (U,) uint64
        Hashes of the opaque user ids (`fedrecgel.common.hashing.user_keys`).
    num_items : int
        Size of the catalogue.
    barred : (flat, offsets) or None
        Items of each user that are no interactions but never drawn as negatives either. Only for
        ``negatives=leaky``, where they are the held-out ones; None by default.
    """

    items: NDArray[np.integer]
    offsets: Ints
    keys: Keys
    num_items: int
    barred: tuple[NDArray[np.integer], Ints] | None = None

    @property
    def num_users(self) -> int:
        return len(self.offsets) - 1

    @property
    def counts(self) -> Ints:
        """(U,) number of interactions of each user."""
        return np.diff(self.offsets)

    def take(self, users: Ints) -> "Interactions":
        """The same for some of the users, in the order given."""
        items, offsets = ragged_take(self.items, self.offsets, users)
        barred = None if self.barred is None else ragged_take(*self.barred, users)
        return Interactions(items, offsets, self.keys[users], self.num_items, barred)

    @cached_property
    def owners(self) -> Ints:
        """(T,) position of the user of each interaction."""
        return np.repeat(np.arange(self.num_users), self.counts)

    @cached_property
    def distinct(self) -> tuple[Ints, Ints]:
        """Each user's items, sorted and without repetition, as (flat, offsets)."""
        return self._sorted(self.owners * self.num_items + self.items)

    @cached_property
    def no_negatives(self) -> tuple[Ints, Ints]:
        """What may not be drawn as a negative, as `distinct`: the user's items and ``barred``."""
        if self.barred is None:
            return self.distinct
        items, offsets = self.barred
        owners = np.repeat(np.arange(self.num_users), np.diff(offsets))
        own = self.owners * self.num_items + self.items
        return self._sorted(np.concatenate([own, owners * self.num_items + items]))

    def _sorted(self, pairs: Ints) -> tuple[Ints, Ints]:
        users, items = np.divmod(np.unique(pairs), self.num_items)
        return items, np.searchsorted(users, np.arange(self.num_users + 1))
