"""How sure a difference is: intervals over seeds, and a paired bootstrap over users and seeds.

`fedrecgel.common.resampling` asks about two trained models. Here the question is about methods, of
which each seed is one training; so seeds are drawn anew as well as users.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.hashing import mix

__all__ = ["RESAMPLES", "paired_bootstrap", "t_interval"]

RESAMPLES = 5_000
_CELLS = 2_000_000

# 97.5 % quantile of Student's t with 1, 2, ... degrees of freedom (any table of it).
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_NORMAL = 1.960

Each = NDArray[np.float64]


def t_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of the mean over seeds, by Student's t; None below two of them.

    Examples
    --------
    >>> [round(end, 3) for end in t_interval([1.0, 2.0, 3.0])]  # 2 -+ 4.303 / sqrt(3)
    [-0.484, 4.484]
    """
    number = len(values)
    if number < 2:
        return None
    mean, spread = float(np.mean(values)), float(np.std(values, ddof=1))
    quantile = _T[number - 2] if number - 2 < len(_T) else _NORMAL
    half = quantile * spread / math.sqrt(number)
    return mean - half, mean + half


def paired_bootstrap(
    base: Each, others: Sequence[Each], *, resamples: int = RESAMPLES
) -> list[dict[str, float]]:
    """Compare others with ``base``: one metric of each user, (seeds, N), on the same users.

    Each resample draws N users with replacement, the same for all methods, and for each method as
    many of its seeds as it has. The same draws are made whenever it is asked.

    Returns
    -------
    list of dict
        ``value`` mean difference other - base, ``low`` and ``high`` its 95 % percentile interval,
        ``p`` two-sided: twice the smaller share of resamples on one side of 0, at least
        2 / (resamples + 1).
    """
    models = [base, *others]
    users = base.shape[1]
    columns = np.concatenate(models).T  # (N, all seeds)
    rng = np.random.default_rng(int(mix("paired bootstrap", resamples)))
    size = max(1, _CELLS // max(users, 1))
    drawn = []
    for start in range(0, resamples, size):
        number = min(size, resamples - start)
        chosen = rng.integers(0, users, (number, users)) + np.arange(number)[:, None] * users
        counts = np.bincount(chosen.ravel(), minlength=number * users).reshape(number, users)
        drawn.append(counts @ columns / users)
    by_seed = np.concatenate(drawn)  # (resamples, all seeds)
    means, first = [], 0
    for model in models:
        seeds = len(model)
        picked = rng.integers(first, first + seeds, (resamples, seeds))
        means.append(np.take_along_axis(by_seed, picked, axis=1).mean(axis=1))
        first += seeds
    return [
        _describe(float(other.mean() - base.mean()), mean - means[0])
        for other, mean in zip(others, means[1:], strict=True)
    ]


def _describe(value: float, drawn: Each) -> dict[str, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    # Equal means that were added up in another order are off by a rounding.
    side = min(np.count_nonzero(drawn <= 1e-12), np.count_nonzero(drawn >= -1e-12))
    p = min(1.0, 2 * (1 + int(side)) / (len(drawn) + 1))
    return {"value": value, "low": float(low), "high": float(high), "p": p}
