"""The rivals of a held-out item: distinct items that the user never interacted with.

For every user ``C`` ranks are drawn without replacement from the items left over, by the method of
Floyd (Bentley, Floyd: "Programming pearls: a sample of brilliance", CACM 1987), all users side by
side; a rank becomes an item by skipping the user's own items. Every draw is a hash of (seed,
purpose, user, position), so a user's candidates do not depend on the other users.
"""

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.hashing import Keys, integers, mix

_BLOCK = 4_096
"""Users handled side by side; no draw depends on it."""
NUM_CANDIDATES = 99
"""Items that a held-out one is ranked among, as in published tables."""


def draw_candidates(
    seed: int,
    purpose: str,
    keys: Keys,
    known_users: NDArray[np.integer],
    known_items: NDArray[np.integer],
    num_items: int,
    num_candidates: int,
) -> NDArray[np.int32]:
    """Draw candidates for each user.

    Parameters
    ----------
    seed, purpose
        Two purposes (validation, test) give independent draws.
    keys
        ``(N,)`` keys of the users.
    known_users, known_items
        ``(R,)`` user and item index of every interaction, in any order, duplicates allowed.
    num_items
        Size ``M`` of the catalogue.
    num_candidates
        ``C``.

    Returns
    -------
    NDArray[np.int32]
        ``(N, C)`` item indices, distinct in each row; padded with -1 at the end where a user has
        fewer than ``C`` items left.
    """
    known = np.sort(known_users.astype(np.int64) * num_items + known_items)
    known = known[np.concatenate([[True], known[1:] != known[:-1]])] if len(known) else known
    starts = np.searchsorted(known, np.arange(len(keys) + 1) * num_items)
    candidates = np.empty((len(keys), num_candidates), dtype=np.int32)
    for first in range(0, len(keys), _BLOCK):
        users = np.arange(first, min(first + _BLOCK, len(keys)))
        sizes = num_items - (starts[users + 1] - starts[users])
        ranks = _draw_ranks(mix(seed, purpose, keys[users]), sizes, num_candidates)
        own = slice(starts[users[0]], starts[users[-1] + 1])
        owner, item = known[own] // num_items, known[own] % num_items
        # Of a user's known items, ascending, the k-th has (item - k) unknown ones below it: an
        # unknown item of rank r stands above exactly those with item - k <= r.
        place = np.arange(own.start, own.stop) - starts[owner]
        below = owner * (num_items + 1) + item - place
        skipped = np.searchsorted(below, users * (num_items + 1) + ranks, side="right")
        found = ranks + skipped + own.start - starts[users]
        candidates[users] = np.where(ranks >= 0, found, -1).T
    return candidates


def _draw_ranks(keys: Keys, sizes: NDArray[np.integer], count: int) -> NDArray[np.int64]:
    """Draw ``(count, B)`` distinct ranks below each size; all of them, then -1, if fewer exist."""
    ranks = np.full((count, len(keys)), -1, dtype=np.int64)
    for k in range(count):
        top = sizes - count + k
        drawn = integers(mix(keys, k), np.maximum(top + 1, 1))
        taken = (ranks[:k] == drawn).any(axis=0)
        ranks[k] = np.where(taken, top, drawn)
    few = np.flatnonzero(sizes <= count)
    everything = np.arange(count)[:, None]
    ranks[:, few] = np.where(everything < sizes[few], everything, -1)
    return ranks
