"""Invented interactions with a long tail of items and tastes of a few latent factors.

Every user meets items drawn by popularity (Zipf) and picks those with the largest sum of taste and
noise; ``disagreement`` scales the taste, so at 0 all users choose alike and at 1 hardly two do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.read import Interactions
from fedrecgel.common.data.split import Events
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.hashing import Keys, integers, mix, normal, uniform

_BLOCK = 4_096
_SHOWN = 8
"""Items a user meets for each one taken."""
_TASTE = 5.0
"""Standard deviation of the taste at full disagreement, in the units of the noise."""
_FEWEST = 5


@dataclass(frozen=True)
class SyntheticSettings:
    """What the invented data look like."""

    users: int = 1_000
    items: int | None = None
    """1,000 if neither this nor ``users_per_item`` is set."""
    interactions: float | None = None
    """Mean per user; 30 if not implied by ``users_per_item``."""
    users_per_item: float | None = None
    """Mean number of users of an item: sets ``items``, or ``interactions`` where items are set."""
    disagreement: float = 0.5
    """How much users' tastes differ, 0 to 1."""
    factors: int = 8
    """Number of latent factors of taste."""
    tail: float = 0.8
    """Exponent of the popularity over its rank; 0 is uniform."""

    def sizes(self) -> tuple[int, int, float]:
        """Users, items and mean interactions, checked."""
        items, mean, per_item = self.items, self.interactions, self.users_per_item
        if None not in (items, mean, per_item):
            raise ConfigError("set at most two of items, interactions and users-per-item")
        if per_item is not None and not per_item > 0:
            raise ConfigError(f"users-per-item is {per_item}; it must be above 0")
        if per_item is not None and items is not None:
            mean = per_item * items / self.users
        mean = 30.0 if mean is None else float(mean)
        if items is None:
            items = 1_000 if per_item is None else max(1, round(self.users * mean / per_item))
        limits = {
            "users": (self.users, 1, 1_000_000),
            "items": (items, 2 * _FEWEST, 1_000_000),
            "interactions": (mean, _FEWEST, items / 2),
            "disagreement": (self.disagreement, 0, 1),
            "factors": (self.factors, 1, 256),
            "tail": (self.tail, 0, 3),
        }
        for name, (value, low, high) in limits.items():
            if not low <= value <= high:
                raise ConfigError(f"{name} is {value:g}; it must be from {low:g} to {high:g} here")
        return self.users, items, mean


def make_synthetic(settings: SyntheticSettings, seed: int) -> Interactions:
    """Invent interactions; the same settings and seed give the same ones."""
    users, items, mean = settings.sizes()
    blocks = list(_blocks(settings, users, items, mean, seed))
    user = np.concatenate([block[0] for block in blocks])
    item = np.concatenate([block[1] for block in blocks])
    time = np.concatenate([block[2] for block in blocks])
    events = Events(user, item, time, np.ones(len(user), dtype=bool))
    report: dict[str, object] = {
        "rows_read": len(user),
        "bad_rows": {"count": 0, "reasons": {}, "first": []},
        "below_threshold": 0,
        "users_without_positives": 0,
        "missing_times": 0,
        "repeated_headers": 0,
        "blank_lines": 0,
        "notes": ["invented data"],
    }
    return Interactions(events, _names("u", users), _names("i", items), report)


def _names(letter: str, count: int) -> NDArray[np.str_]:
    digits = len(str(count - 1))
    return np.array([f"{letter}{k:0{digits}d}" for k in range(count)], dtype=np.str_)


def _blocks(
    settings: SyntheticSettings, users: int, items: int, mean: float, seed: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]]:
    """Yield users, items and times of blocks of users; nothing depends on the size of a block."""
    everything = np.arange(items)
    item_keys = mix(seed, "synthetic item", everything)
    # Which items are popular has nothing to do with their ids.
    rank = np.empty(items, dtype=np.int64)
    rank[np.argsort(item_keys)] = everything
    popularity = np.power(rank + 1.0, -settings.tail, dtype=np.float64)
    item_taste = _normals(item_keys, settings.factors) / np.sqrt(settings.factors)
    for start in range(0, users, _BLOCK):
        index = np.arange(start, min(start + _BLOCK, users))
        keys = mix(seed, "synthetic user", index)
        wanted = _wanted(keys, mean, items)
        shown, bonus = _show(keys, popularity, _SHOWN * int(np.ceil(mean)), int(wanted.max()))
        taste = _normals(keys, settings.factors).astype(np.float32)
        score = np.einsum("bf,bsf->bs", taste, item_taste.astype(np.float32)[shown], optimize=True)
        score = _TASTE * settings.disagreement * score + bonus
        noise = uniform(mix(keys[:, None], "noise", shown))
        score -= np.log(-np.log(noise)).astype(score.dtype)
        order = np.argsort(-score, axis=1)[:, : int(wanted.max())]
        taken = np.arange(order.shape[1]) < wanted[:, None]
        taken &= np.isfinite(np.take_along_axis(score, order, axis=1))
        chosen = np.take_along_axis(shown, order, axis=1)
        when = integers(mix(keys[:, None], "time", chosen), 10**8) + 1_600_000_000
        yield np.broadcast_to(index[:, None], taken.shape)[taken], chosen[taken], when[taken]


def _wanted(keys: Keys, mean: float, items: int) -> NDArray[np.int64]:
    """How many interactions each user has: at least five, with an exponential tail."""
    extra = -np.log(uniform(mix(keys, "activity"))) * max(mean - _FEWEST, 0.0)
    return np.minimum(_FEWEST + np.rint(extra).astype(np.int64), items // 2)


def _normals(keys: Keys, factors: int) -> NDArray[np.float64]:
    return normal(mix(keys[:, None], "taste", np.arange(factors)))


def _show(
    keys: Keys, popularity: NDArray[np.float64], count: int, most: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Items each user meets, ``(B, S)``, and a bonus to their score (-inf: met before).

    Where the catalogue is small everybody meets all of it and popularity counts as a bonus;
    elsewhere items are met in proportion to their popularity.
    """
    items = len(popularity)
    count = max(count, 2 * most)
    if items <= 2 * count:
        shown = np.broadcast_to(np.arange(items), (len(keys), items))
        return shown, np.broadcast_to(np.log(popularity).astype(np.float32), shown.shape)
    edges = np.cumsum(popularity) / popularity.sum()
    # Sorted, because looking up neighbours one after the other is several times faster.
    draws = np.sort(uniform(mix(keys[:, None], "meet", np.arange(count))), axis=1)
    shown = np.minimum(np.searchsorted(edges, draws), items - 1)
    bonus = np.zeros(shown.shape, dtype=np.float32)
    bonus[:, 1:][shown[:, 1:] == shown[:, :-1]] = -np.inf
    return shown, bonus
