"""Ranking metrics of one held-out item per user, exact under ties, as sums that add.

The held-out item of a user (the *positive*) is ranked among other items. A model may give several
of them the same score; then the rank is not a number but uniform on ``greater + 1`` to
``greater + ties + 1``, and every metric here is the expectation over it. A model that scores
everything alike gets exactly the level of chance, never more. With one relevant item the ideal DCG
is 1, so NDCG at k is ``1 / log2(rank + 1)`` for ranks up to k and 0 beyond; the hit ratio at k is 1
up to k and 0 beyond, the reciprocal rank ``1 / rank`` up to k and 0 beyond. Recall then equals the
hit ratio, precision is the hit ratio divided by k, and average precision is the reciprocal rank.
Users with several held-out items: `fedrecgel.common.several`.

Every user weighs the same, however many interactions they have.
"""

import math
from collections.abc import Iterable, Mapping
from typing import TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedrecgel.common.errors import FedRecError, ReplyError

__all__ = [
    "CUTOFFS",
    "KINDS",
    "NAMES",
    "MetricSums",
    "MetricValue",
    "RankCounts",
    "discounts",
    "hit_ratio",
    "mean_and_se",
    "metric",
    "metric_names",
    "ndcg",
    "parse_metric",
    "reciprocal_rank",
    "values_of",
]

CUTOFFS = (5, 10, 15, 20)
"""List lengths k at which everything is reported."""

NAMES = tuple(f"{kind}@{k}" for k in CUTOFFS for kind in ("hr", "ndcg"))
"""``hr@5, ndcg@5, hr@10 ... ndcg@20``: what travels as sums."""

KINDS = ("hr", "ndcg", "mrr", "recall", "precision", "map")
"""Every metric that can be asked for at any k, as ``kind@k``."""


class MetricValue(TypedDict):
    """A mean over users and its standard error; None where too few users make it undefined."""

    value: float | None
    se: float | None


class RankCounts:
    """Where each user's positive stands among its rivals.

    Parameters
    ----------
    greater
        (n,) number of rivals with a strictly higher score.
    ties
        (n,) number of rivals with an equal score.
    users
        (n,) positions of these users in the view that was ranked (default: 0 .. n-1). They stay
        on the machine that ranked; only sums travel.
    """

    __slots__ = ("greater", "ties", "users")

    def __init__(self, greater: ArrayLike, ties: ArrayLike, users: ArrayLike | None = None) -> None:
        self.greater: NDArray[np.int64] = np.asarray(greater, dtype=np.int64)
        self.ties: NDArray[np.int64] = np.asarray(ties, dtype=np.int64)
        positions = np.arange(len(self.greater)) if users is None else users
        self.users: NDArray[np.int64] = np.asarray(positions, dtype=np.int64)
        assert self.greater.shape == self.ties.shape == self.users.shape

    def __len__(self) -> int:
        return len(self.greater)

    def select(self, mask: NDArray[np.bool_]) -> "RankCounts":
        """Keep only the users where ``mask`` (n,) holds."""
        return RankCounts(self.greater[mask], self.ties[mask], self.users[mask])

    @classmethod
    def concatenate(cls, parts: Iterable["RankCounts"]) -> "RankCounts":
        """Join blocks of users, in the order given."""
        joined = [cls([], []), *parts]
        return cls(
            np.concatenate([p.greater for p in joined]),
            np.concatenate([p.ties for p in joined]),
            np.concatenate([p.users for p in joined]),
        )


def hit_ratio(counts: RankCounts, k: int) -> NDArray[np.float64]:
    """Return the probability that the positive is among the first ``k``, per user (n,)."""
    return _expected(counts, np.ones(k))


def ndcg(counts: RankCounts, k: int) -> NDArray[np.float64]:
    """Return the expected ``1 / log2(rank + 1)`` up to rank ``k``, 0 beyond, per user (n,)."""
    return _expected(counts, discounts(k))


def reciprocal_rank(counts: RankCounts, k: int) -> NDArray[np.float64]:
    """Return the expected ``1 / rank`` up to rank ``k``, 0 beyond, per user (n,)."""
    return _expected(counts, 1.0 / np.arange(1, k + 1))


def discounts(k: int) -> NDArray[np.float64]:
    """``1 / log2(rank + 1)`` of ranks 1 to ``k``."""
    return np.asarray(1.0 / np.log2(np.arange(1, k + 1) + 1.0), dtype=np.float64)


def _expected(counts: RankCounts, gains: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean of ``gains`` (k,) over the ranks that are possible; ranks beyond k gain nothing."""
    k = len(gains)
    # total[r] is the sum over ranks 1..r, so a range of ranks is one difference.
    total = np.concatenate([[0.0], np.cumsum(gains)])
    first = np.minimum(counts.greater, k)
    last = np.minimum(counts.greater + counts.ties + 1, k)
    mean = (total[last] - total[first]) / (counts.ties + 1)
    # A difference of sums is off by one rounding; a rank that is certain has an exact value.
    exact = np.concatenate([gains, [0.0]])[first]
    return np.asarray(np.where(counts.ties == 0, exact, mean), dtype=np.float64)


def metric(name: str, counts: RankCounts) -> NDArray[np.float64]:
    """Return the metric ``name`` (``hr@10``, ``mrr@5``, ... any k >= 1) per user (n,)."""
    kind, k = parse_metric(name)
    if kind in ("mrr", "map"):
        return reciprocal_rank(counts, k)
    if kind == "ndcg":
        return ndcg(counts, k)
    hits = hit_ratio(counts, k)
    return hits / k if kind == "precision" else hits


def parse_metric(name: str) -> tuple[str, int]:
    """Split ``hr@10`` into kind and k."""
    kind, _, k = name.partition("@")
    if kind not in KINDS or not k.isdecimal() or int(k) < 1:
        known = ", ".join(KINDS)
        raise FedRecError(f"unknown metric {name!r}: use {known} with @k, for example hr@10")
    return kind, int(k)


def metric_names(cutoffs: Iterable[int], kinds: Iterable[str] = KINDS) -> tuple[str, ...]:
    """Names of every kind at every cutoff: ``hr@5, ndcg@5, ...``."""
    chosen = tuple(kinds)
    return tuple(f"{kind}@{k}" for k in cutoffs for kind in chosen)


def values_of(counts: RankCounts, names: Iterable[str]) -> dict[str, MetricValue]:
    """Return mean and standard error of each metric over the users of ``counts``."""
    return {name: mean_and_se(metric(name, counts)) for name in names}


def mean_and_se(each: NDArray[np.float64]) -> MetricValue:
    """Return the mean of one number per user (n,) and its standard error."""
    return _mean_and_se(len(each), float(each.sum()), float(np.square(each).sum()))


class MetricSums:
    """Sums over users of every metric and of its square; sums of several nodes add.

    Parameters
    ----------
    users
        Number of users summed over.
    totals, squares
        One float64 for each name in `NAMES`.
    """

    __slots__ = ("squares", "totals", "users")

    def __init__(
        self,
        users: int = 0,
        totals: NDArray[np.float64] | None = None,
        squares: NDArray[np.float64] | None = None,
    ) -> None:
        self.users = users
        self.totals = np.zeros(len(NAMES)) if totals is None else totals
        self.squares = np.zeros(len(NAMES)) if squares is None else squares

    @classmethod
    def from_counts(cls, counts: RankCounts) -> "MetricSums":
        """Sum over the users of ``counts``."""
        each = np.stack([metric(name, counts) for name in NAMES])
        return cls(len(counts), each.sum(axis=1), np.square(each).sum(axis=1))

    def add(self, other: "MetricSums") -> "MetricSums":
        """Return the sums over the users of both."""
        return MetricSums(
            self.users + other.users, self.totals + other.totals, self.squares + other.squares
        )

    def to_flat(self, prefix: str = "") -> dict[str, float]:
        """Return plain numbers for a message: ``<prefix>users``, ``<prefix>hr@10.sum``, ...."""
        flat = {f"{prefix}users": float(self.users)}
        for name, total, square in zip(NAMES, self.totals, self.squares, strict=True):
            flat[f"{prefix}{name}.sum"] = float(total)
            flat[f"{prefix}{name}.squares"] = float(square)
        return flat

    @classmethod
    def from_flat(cls, flat: Mapping[str, object], prefix: str = "") -> "MetricSums":
        """Read what `to_flat` wrote; other keys are left alone. Impossible sums are refused."""
        users = _number(flat, f"{prefix}users")
        totals = np.array([_number(flat, f"{prefix}{name}.sum") for name in NAMES])
        squares = np.array([_number(flat, f"{prefix}{name}.squares") for name in NAMES])
        room = 1e-9 * max(users, 1.0)
        possible = (totals <= users + room) & (squares <= totals + room) & (squares >= 0)
        if users != int(users) or users < 0 or not possible.all():
            raise ReplyError(f"metric sums over {users:g} users cannot be: reply left out")
        return cls(int(users), totals, squares)

    def value(self, name: str) -> float:
        """Return the mean over users; nan without users."""
        return float(self.totals[NAMES.index(name)] / self.users) if self.users else math.nan

    def values(self) -> dict[str, MetricValue]:
        """Return ``{"hr@10": {"value": mean, "se": standard error of the mean}, ...}``."""
        rows = zip(NAMES, self.totals, self.squares, strict=True)
        return {name: _mean_and_se(self.users, total, square) for name, total, square in rows}


def _number(flat: Mapping[str, object], key: str) -> float:
    number = flat.get(key)
    if not isinstance(number, int | float) or not math.isfinite(number):
        raise ReplyError(f"metric {key!r} is missing or not a finite number: reply left out")
    return float(number)


def _mean_and_se(users: int, total: float, square: float) -> MetricValue:
    if users == 0:
        return {"value": None, "se": None}
    mean = float(total) / users
    if users == 1:
        return {"value": mean, "se": None}
    variance = max(float(square) - users * mean * mean, 0.0) / (users - 1)
    return {"value": mean, "se": math.sqrt(variance / users)}
