"""The site's users as serving sees them: who they are, what they have, and what is popular."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.read import Interactions as Rows
from fedrecgel.common.hashing import user_keys
from fedrecgel.common.interactions import Interactions, Ints
from fedrecgel.common.item_lists import ItemLists, join_lists


@dataclass(frozen=True, eq=False)
class People:
    """Everybody with interactions at the site, trained or not.

    Items are the catalogue's ``M`` and, behind them, ``E`` new ones that only the site knows.

    Attributes
    ----------
    known
        Distinct items of each user, ascending.
    item_ids
        ``M + E`` of them.
    num_items
        ``M``: so many have a row in the model.
    """

    user_ids: Sequence[str]
    known: ItemLists
    item_ids: Sequence[str]
    num_items: int

    @classmethod
    def of_dataset(cls, data: Dataset) -> "People":
        """The users of a prepared data set, with all their items, held-out ones too."""
        parts = [ItemLists(data.train_items, data.train_offsets)]
        parts += [ItemLists(*data.held_out(split)) for split in ("validation", "test")]
        lists = join_lists(*parts)
        owners = np.repeat(np.arange(data.num_users), np.diff(lists.offsets))
        known = _distinct(owners, lists.items, data.num_users, data.num_items)
        return cls(data.user_ids.tolist(), known, data.item_ids.tolist(), data.num_items)

    @classmethod
    def of_rows(cls, rows: Rows, catalogue: Sequence[str]) -> "People":
        """The users of a site's own file; items that the catalogue does not have are new ones."""
        places = {item: place for place, item in enumerate(catalogue)}
        used = np.bincount(rows.events.item, minlength=len(rows.item_ids)) > 0
        for item in rows.item_ids[used].tolist():
            places.setdefault(item, len(places))
        place = np.array([places.get(item, -1) for item in rows.item_ids.tolist()], dtype=np.int64)
        known = _distinct(
            rows.events.user, place[rows.events.item], len(rows.user_ids), len(places)
        )
        return cls(rows.user_ids.tolist(), known, list(places), len(catalogue))

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {user: position for position, user in enumerate(self.user_ids)}

    @cached_property
    def items(self) -> dict[str, int]:
        """Place of each item id."""
        return {item: place for place, item in enumerate(self.item_ids)}

    def position(self, user: str) -> int | None:
        """Where a user stands; None for somebody without interactions."""
        return self._positions.get(user)

    def items_of(self, position: int) -> Ints:
        """What a user has, new items included."""
        start, end = self.known.offsets[position : position + 2]
        return np.asarray(self.known.items[start:end], dtype=np.int64)

    def interactions(self, position: int) -> Interactions:
        """What a user has of the model's items, as algorithms take it."""
        items = self.items_of(position)
        items = items[items < self.num_items]
        keys = user_keys([self.user_ids[position]])
        return Interactions(items, np.array([0, len(items)]), keys, self.num_items)

    @cached_property
    def popularity(self) -> Tensor:
        """(M + E,) how many of the site's users have each item."""
        counts = np.bincount(self.known.items, minlength=len(self.item_ids))
        return torch.from_numpy(counts.astype(np.float64))

    def with_new(self, scores: Tensor) -> Tensor:
        """(M + E,) the scores (M,) of the model's items, and behind them estimates of the new ones.

        A new item gets the mean score of the items that as many users have; where there is none,
        of those with the nearest number.
        """
        if len(self.item_ids) == self.num_items:
            return scores
        level, size, wanted = self._levels
        means = torch.bincount(level, scores.double(), minlength=len(size)) / size
        return torch.cat((scores, means[wanted].to(scores.dtype)))

    @cached_property
    def _levels(self) -> tuple[Tensor, Tensor, Tensor]:
        """Each model item's level of popularity (M,), items of a level, each new item's level."""
        counts = self.popularity.numpy()
        values, level, size = np.unique(
            counts[: self.num_items], return_inverse=True, return_counts=True
        )
        distance = np.abs(values[None, :] - counts[self.num_items :, None])
        found = (level.astype(np.int64), size, distance.argmin(axis=1))
        first, second, third = map(torch.from_numpy, found)
        return first, second, third


def _distinct(users: np.ndarray, items: np.ndarray, num_users: int, num_items: int) -> ItemLists:
    pairs = np.unique(users.astype(np.int64) * num_items + items)
    owners, flat = np.divmod(pairs, num_items)
    return ItemLists(flat, np.searchsorted(owners, np.arange(num_users + 1)))
