"""The rivals of a held-out item: distinct items that the user never interacted with.

For every user ``C`` ranks are drawn without replacement from the items left over, by the method of
Floyd (Bentley, Floyd: "Programming pearls: a sample of brilliance", CACM 1987), all users side by
side; a rank becomes an item by skipping the user's own items. Every draw is a hash of (seed,
purpose, user, position), so a user's candidates do not depend on the other users.
"""

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.hashing import Keys, integers, mix


def draw_candidates(
    seed: int,
    purpose: str,
    keys: Keys,
    known_users: NDArray[np.integer],
    known_items: NDArray[np.integer],
    num_items: int,
    num_candidates: int = 99,
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
    known = np.unique(known_users.astype(np.int64) * num_items + known_items)
    users, items = known // num_items, known % num_items
    starts = np.searchsorted(users, np.arange(len(keys) + 1))
    ranks = _draw_ranks(mix(seed, purpose, keys), num_items - np.diff(starts), num_candidates)
    # Of a user's known items, ascending, the k-th has (item - k) unknown ones below it: an unknown
    # item of rank r stands above exactly those with item - k <= r.
    below = users * (num_items + 1) + items - (np.arange(len(known)) - starts[users])
    base = np.arange(len(keys), dtype=np.int64)[:, None] * (num_items + 1)
    skipped = np.searchsorted(below, base + ranks, side="right") - starts[:-1, None]
    return np.where(ranks >= 0, ranks + skipped, -1).astype(np.int32)


def _draw_ranks(keys: Keys, sizes: NDArray[np.integer], count: int) -> NDArray[np.int64]:
    """Draw ``count`` distinct ranks below each size; all ranks, then -1, where there are fewer."""
    ranks = np.full((len(keys), count), -1, dtype=np.int64)
    everything = np.arange(count)[None, :] < sizes[:, None]
    for k in range(count):
        top = sizes - count + k
        drawn = integers(mix(keys, k), np.maximum(top + 1, 1))
        taken = (ranks[:, :k] == drawn[:, None]).any(axis=1)
        ranks[:, k] = np.where(taken, top, drawn)
    few = sizes <= count
    ranks[few] = np.where(everything[few], np.arange(count), -1)
    return ranks
