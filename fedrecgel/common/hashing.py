"""Counter-based randomness: every draw is a pure function of what it is for.

A draw is the hash of (seed, purpose, round, user, position). There is no generator whose state
could depend on the order in which users are visited, on how they are grouped into nodes, or on the
number of workers, so none of these can change a number. All functions are vectorised over numpy
arrays.

The mixing function is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable
pseudorandom number generators", OOPSLA 2014), applied once for every part.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def _finalise(x: Keys) -> Keys:
    x = (x ^ (x >> np.uint64(30))) * _FIRST
    x = (x ^ (x >> np.uint64(27))) * _SECOND
    return x ^ (x >> np.uint64(31))


def _as_key(part: "int | str | NDArray[np.generic]") -> Keys:
    if isinstance(part, str):
        digest = hashlib.blake2b(part.encode(), digest_size=8).digest()
        return np.array(int.from_bytes(digest, "little"), dtype=np.uint64)
    if isinstance(part, int):
        return np.array(part & 0xFFFFFFFFFFFFFFFF, dtype=np.uint64)
    return part.astype(np.uint64)


def mix(*parts: "int | str | NDArray[np.generic]") -> Keys:
    """Hash any number of parts into 64-bit keys.

    Parameters
    ----------
    parts
        Integers, strings (hashed once) or integer arrays, which broadcast against each other.

    Returns
    -------
    Keys
        ``uint64`` array of the broadcast shape (0-d for scalars only).
    """
    with np.errstate(over="ignore"):
        key: Keys = np.array(0, dtype=np.uint64)
        for part in parts:
            key = _finalise((key ^ _as_key(part)) + _GOLDEN)
    return np.asarray(key, dtype=np.uint64)


def user_keys(ids: Iterable[str]) -> Keys:
    """64-bit keys of opaque user ids; they replace the ids wherever randomness is drawn."""
    digests = (hashlib.blake2b(i.encode(), digest_size=8).digest() for i in ids)
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def uniform(keys: Keys) -> NDArray[np.float64]:
    """Uniform numbers in (0, 1), one for each key, 53 bits."""
    middle = ((keys >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    # 2**53 - 0.5 has no double of its own: the last cell of all would round up to 1.
    return np.minimum(middle, 1.0 - 2.0**-53)


def integers(keys: Keys, high: "int | NDArray[np.integer]") -> NDArray[np.int64]:
    """Integers in [0, high), one for each key. The bias is below ``high`` / 2**53."""
    # The product cannot round up to `high` itself: that takes high > 2**52, beyond any catalogue.
    return np.floor(uniform(keys) * high).astype(np.int64)


def normal(keys: Keys) -> NDArray[np.float64]:
    """Standard normal numbers, one for each key (Box and Muller, 1958)."""
    radius = np.sqrt(-2.0 * np.log(uniform(keys)))
    angle = 2.0 * np.pi * uniform(mix(keys, "angle"))
    return radius * np.cos(angle)


def smallest(users: NDArray[np.int64], order: NDArray[Any], size: int) -> NDArray[np.int64]:
    """The ``size`` users with the smallest numbers in ``order``, ascending."""
    if size >= len(users):
        return users
    return np.sort(users[np.argpartition(order, size)[:size]])


def uniform_cohort(
    users: NDArray[np.int64], size: int, seed: int, round: int, attempt: int
) -> NDArray[np.int64]:
    """``size`` of the users, ascending; every set of them is equally likely."""
    return smallest(users, mix("cohort", seed, round, attempt, users), size)
