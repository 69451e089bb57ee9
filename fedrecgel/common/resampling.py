"""Intervals and tests over users, from one number per user.

The bootstrap draws users with replacement. A metric takes few distinct values (a hit ratio two,
NDCG at ten eleven), so drawing n users is one draw of how often each value occurs: the cost depends
on the number of distinct values, not on the number of users, and the result is the same bootstrap.
The sign-flip test uses the same trick. Both say how sure a number is for *these trained models*;
the spread between seeds of training is not in it.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.errors import FedRecError
from fedrecgel.common.hashing import mix
from fedrecgel.common.metrics import NAMES, RankCounts, metric

__all__ = [
    "Paired",
    "bootstrap_interval",
    "holm",
    "paired_difference",
    "paired_test",
    "sign_flip_p",
]

Paired = dict[str, float | None]

RESAMPLES = 2_000
FLIPS = 10_000
LEVEL = 0.95
_CELLS = 4_000_000
_Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]


def bootstrap_interval(
    each: NDArray[np.float64], *, seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[float, float] | None:
    """Return the percentile interval of the mean over users (n,); None below two users."""
    users = len(each)
    if users < 2:
        return None
    levels, counts = np.unique(each, return_counts=True)
    if len(levels) == 1:
        return float(levels[0]), float(levels[0])
    shares = counts / users

    def draw(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        return np.asarray(rng.multinomial(users, shares, size) @ levels / users)

    means = _drawn("bootstrap", seed, resamples, len(levels), draw)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def sign_flip_p(delta: NDArray[np.float64], *, seed: int = 0, flips: int = FLIPS) -> float:
    """Two-sided p of a mean difference when each user's sign is as likely + as - (n,).

    Fisher's randomisation test, drawn ``flips`` times; the smallest possible p is
    1 / (flips + 1), and 1 where no user differs.
    """
    sizes, counts = np.unique(np.abs(delta[delta != 0]), return_counts=True)
    if not len(sizes):
        return 1.0
    observed = abs(float(delta.sum()))

    def draw(rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        positive = rng.binomial(counts, 0.5, (size, len(counts)))
        return np.asarray(np.abs((2.0 * positive - counts) @ sizes))

    drawn = _drawn("sign flips", seed, flips, len(sizes), draw)
    # A sum in another order is off by a rounding; as far as the observed one still counts.
    room = 1e-9 * float(sizes @ counts)
    return float((1 + np.count_nonzero(drawn >= observed - room)) / (flips + 1))


def _drawn(purpose: str, seed: int, number: int, columns: int, draw: _Draw) -> NDArray[np.float64]:
    """Draw in blocks of bounded memory; the same numbers whenever it is asked again."""
    rng = np.random.default_rng(int(mix(purpose, seed)))
    block = max(1, _CELLS // max(columns, 1))
    sizes = [min(block, number - start) for start in range(0, number, block)]
    return np.concatenate([draw(rng, size) for size in sizes])


def paired_difference(
    a: RankCounts, b: RankCounts, names: Iterable[str] = NAMES
) -> dict[str, Paired]:
    """Measure how much better ``a`` is than ``b`` on the same users, metric by metric.

    Both must rank the same users in the same order; see `paired_test` for what is returned.
    """
    if not np.array_equal(a.users, b.users):
        raise FedRecError(
            f"the two runs rank different users ({len(a)} and {len(b)}): "
            "compare runs on the same data set and split"
        )
    return {name: paired_test(metric(name, a), metric(name, b)) for name in names}


def paired_test(a: NDArray[np.float64], b: NDArray[np.float64], *, seed: int = 0) -> Paired:
    """Compare one metric of two models on the same users, (n,) each.

    Much of what makes a user easy or hard cancels in their own difference, so this is far sharper
    than comparing two means with their errors.

    Returns
    -------
    dict
        ``value`` mean of a - b, ``se`` its standard error, ``low`` and ``high`` the 95 % bootstrap
        interval, ``changed`` the share of users whose metric differs, ``better`` the share for whom
        a is better, ``effect`` the mean divided by the standard deviation of the users' differences
        (Cohen's d_z; None where they do not differ in anything). All None without users; ``se``,
        ``low``, ``high`` and ``effect`` with fewer than two.
    """
    delta = a - b
    names = ("value", "se", "low", "high", "changed", "better", "effect")
    found: Paired = dict.fromkeys(names)
    if not len(delta):
        return found
    found["value"] = float(delta.mean())
    found["changed"], found["better"] = float(np.mean(delta != 0)), float(np.mean(delta > 0))
    interval = bootstrap_interval(delta, seed=seed)
    if interval is not None:
        spread = float(delta.std(ddof=1))
        found["se"] = spread / math.sqrt(len(delta))
        found["low"], found["high"] = interval
        found["effect"] = float(delta.mean()) / spread if spread > 0 else None
    return found


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for having made several tests (Holm, 1979), in the order given.

    Rejecting those at most 0.05 keeps the chance of a single false claim among all at 0.05.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(order):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted
