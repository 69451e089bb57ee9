"""A list of items for each user, as flat arrays."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Ints", "ItemLists", "join_lists"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ItemLists:
    """A list of items for each user: those of user u are ``items[offsets[u]:offsets[u + 1]]``."""

    items: NDArray[np.integer]
    offsets: NDArray[np.integer]

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def entries(self, rows: Ints) -> tuple[Ints, Ints]:
        """Return all entries of the lists ``rows`` (B,): the place in ``rows``, and the item."""
        starts = np.asarray(self.offsets[rows], dtype=np.int64)
        lengths = np.asarray(self.offsets[rows + 1], dtype=np.int64) - starts
        which = np.repeat(np.arange(len(rows)), lengths)
        before = np.cumsum(lengths) - lengths
        at = np.arange(len(which)) + np.repeat(starts - before, lengths)
        return which, np.asarray(self.items[at], dtype=np.int64)

    def select(self, rows: Ints) -> "ItemLists":
        """Keep the lists of these users only, in this order."""
        which, items = self.entries(rows)
        lengths = np.bincount(which, minlength=len(rows))
        return ItemLists(items, np.concatenate([[0], np.cumsum(lengths)]))


def join_lists(*parts: ItemLists) -> ItemLists:
    """Put the lists of each user behind each other; all parts have the same users."""
    lengths = [np.diff(part.offsets) for part in parts]
    offsets = np.concatenate([[0], np.cumsum(sum(lengths))]).astype(np.int64)
    items = np.empty(offsets[-1], dtype=np.int32)
    start = offsets[:-1]
    for part, length in zip(parts, lengths, strict=True):
        shift = np.repeat(start - np.asarray(part.offsets[:-1]), length)
        items[np.arange(len(shift)) + shift] = part.items
        start = start + length
    return ItemLists(items, offsets)
