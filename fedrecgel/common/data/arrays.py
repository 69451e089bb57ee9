"""The flat arrays of a data set, and how events in order become them."""

from collections.abc import Mapping
from typing import TypedDict, cast

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.candidates import draw_candidates
from fedrecgel.common.data.split import TEST, TRAIN, VALIDATION
from fedrecgel.common.hashing import Keys

KINDS = {"validation": VALIDATION, "test": TEST}


class Lists(TypedDict, total=False):
    """Arrays that are there only when a split holds out several items of a user."""

    validation_lists: NDArray[np.int32]
    validation_list_offsets: NDArray[np.int64]
    test_lists: NDArray[np.int32]
    test_list_offsets: NDArray[np.int64]


class Arrays(Lists):
    """The arrays of a data set by name; their meaning stands at ``Dataset``."""

    user_ids: NDArray[np.str_]
    item_ids: NDArray[np.str_]
    train_items: NDArray[np.int32]
    train_offsets: NDArray[np.int64]
    validation_items: NDArray[np.int32]
    test_items: NDArray[np.int32]
    validation_candidates: NDArray[np.int32]
    test_candidates: NDArray[np.int32]


LISTS = tuple(Lists.__annotations__)
ARRAYS = tuple(name for name in Arrays.__annotations__ if name not in LISTS)


def by_name(arrays: Arrays) -> Mapping[str, NDArray[np.generic]]:
    """Return the arrays as a plain mapping."""
    return cast(Mapping[str, NDArray[np.generic]], arrays)


def arrange(
    user_ids: NDArray[np.str_],
    item_ids: NDArray[np.str_],
    keys: Keys,
    user: NDArray[np.int64],
    item: NDArray[np.int64],
    part: NDArray[np.int8],
    seed: int,
    num_candidates: int,
    *,
    several: bool,
) -> Arrays:
    """Lay out events ``user``, ``item``, ``part`` (R,), sorted by user and each user's by time.

    ``several``: whether a user may have several items in a held-out part.
    """
    users, items = len(user_ids), len(item_ids)
    train = part == TRAIN
    arrays: dict[str, NDArray[np.generic]] = {
        "user_ids": user_ids,
        "item_ids": item_ids,
        "train_items": item[train].astype(np.int32),
        "train_offsets": _offsets(user[train], users),
    }
    for kind, value in KINDS.items():
        held, owners = item[part == value].astype(np.int32), user[part == value]
        offsets = _offsets(owners, users)
        there = offsets[1:] > offsets[:-1]
        first = np.full(users, -1, dtype=np.int32)
        first[there] = held[offsets[:-1][there]]
        candidates = np.full((users, num_candidates), -1, dtype=np.int32)
        if len(held):
            candidates = draw_candidates(seed, kind, keys, user, item, items, num_candidates)
            candidates[~there] = -1
        arrays |= {f"{kind}_items": first, f"{kind}_candidates": candidates}
        if several:
            arrays |= {f"{kind}_lists": held, f"{kind}_list_offsets": offsets}
    return cast(Arrays, arrays)


def _offsets(owners: NDArray[np.int64], users: int) -> NDArray[np.int64]:
    counts = np.bincount(owners, minlength=users)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
