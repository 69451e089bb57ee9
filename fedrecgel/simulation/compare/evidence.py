"""How sure a difference is: intervals over seeds, and a paired bootstrap that counts both.

`fedrecgel.common.resampling` asks about two trained models. Here the question is about methods, of
which each seed is one training; so what another seed would have changed counts as well. Two to five
seeds are too few to draw from: a difference of two means over seeds is given the noise that Welch's
test counts with, Student's t with the degrees of freedom of both times their standard error.
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

    Each resample draws N users with replacement, the same for all methods, and adds to a difference
    the noise of so few seeds; for a method of a single seed none, so what is found holds for that
    training. The same draws are made whenever it is asked.

    Returns
    -------
    list of dict
        ``value`` mean difference other - base, ``low`` and ``high`` its 95 % percentile interval,
        ``p`` two-sided: twice the smaller share of resamples on one side of 0, at least
        2 / (resamples + 1).
    """
    models = [base, *others]
    users = base.shape[1]
    columns = np.stack([model.mean(axis=0) for model in models], axis=1)  # (N, models)
    rng = np.random.default_rng(int(mix("paired bootstrap", resamples)))
    size = max(1, _CELLS // max(users, 1))
    drawn = []
    for start in range(0, resamples, size):
        number = min(size, resamples - start)
        chosen = rng.integers(0, users, (number, users)) + np.arange(number)[:, None] * users
        counts = np.bincount(chosen.ravel(), minlength=number * users).reshape(number, users)
        drawn.append(counts @ columns / users)
    means = np.concatenate(drawn)  # (resamples, models)
    found = []
    for place, other in enumerate(others, 1):
        error, freedom = _welch(base, other)
        drawn_difference = means[:, place] - means[:, 0]
        if error > 0:
            drawn_difference += error * rng.standard_t(freedom, resamples)
        found.append(_describe(float(other.mean() - base.mean()), drawn_difference))
    return found


def _welch(*models: Each) -> tuple[float, float]:
    """Standard error over seeds of the difference of two means, and its degrees of freedom."""
    parts = [
        (model.mean(axis=1).var(ddof=1) / len(model), len(model) - 1)
        for model in models
        if len(model) > 1
    ]
    total = sum(part for part, _ in parts)
    spread = sum(part**2 / freedom for part, freedom in parts)
    return math.sqrt(total), total**2 / spread if spread > 0 else 1.0


def _describe(value: float, drawn: Each) -> dict[str, float]:
    low, high = np.quantile(drawn, [0.025, 0.975])
    # Equal means that were added up in another order are off by a rounding.
    side = min(np.count_nonzero(drawn <= 1e-12), np.count_nonzero(drawn >= -1e-12))
    p = min(1.0, 2 * (1 + int(side)) / (len(drawn) + 1))
    return {"value": value, "low": float(low), "high": float(high), "p": p}
