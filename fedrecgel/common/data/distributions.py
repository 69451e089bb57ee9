"""How interactions are spread over users and over items."""

import numpy as np
from numpy.typing import NDArray

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


def describe_counts(counts: NDArray[np.integer]) -> dict[str, object]:
    """Describe counts (n,), one for each user or item, all at least 1.

    Quantiles are counts that occur (the lower one where a quantile falls between two); ``top`` is
    the share of all interactions that the first percent (at least one) of the users or items has.
    """
    ordered = np.sort(counts)
    top = ordered[-max(len(ordered) // 100, 1) :].sum() / ordered.sum()
    quantiles = np.quantile(ordered, QUANTILES, method="lower")
    return {
        "count": len(ordered),
        "least": int(ordered[0]),
        **{f"p{round(100 * q)}": int(v) for q, v in zip(QUANTILES, quantiles, strict=True)},
        "most": int(ordered[-1]),
        "mean": float(ordered.mean()),
        "gini": gini(ordered),
        "top": float(top),
    }


def gini(counts: NDArray[np.integer]) -> float:
    """Return the Gini coefficient: 0 if all are equal, near 1 if one has all.

    >>> gini(np.array([1, 1, 1])), gini(np.array([0, 0, 0, 4]))
    (0.0, 0.75)
    """
    ordered = np.sort(counts).astype(np.float64)
    size, total = len(ordered), ordered.sum()
    if not size or total == 0:
        return 0.0
    places = np.arange(1, size + 1)
    return max(float(2 * (places * ordered).sum() / (size * total) - (size + 1) / size), 0.0)
