"""The history of a run, one row per evaluated round, and which round it points to."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fedrecgel.common.metrics import MetricValue

__all__ = ["MetricRow", "best_by_test", "series", "training_summary"]


class MetricRow(TypedDict, total=False):
    """One line of ``metrics.jsonl``. Counts and seconds cover the rounds since the line before."""

    round: int
    loss: float
    validation: Mapping[str, Mapping[str, MetricValue]]
    test: Mapping[str, Mapping[str, MetricValue]]
    replies: int
    failures: int
    bytes_up_per_user: float
    bytes_down_per_user: float
    seconds: float


def best_by_test(history: Sequence[MetricRow], *, metric: str = "hr@10") -> dict[str, Any] | None:
    """Find the round that is best on the TEST items, as the paper reports; None if never tested."""
    scored = series(history, "test", "sampled", metric)
    if not scored:
        return None
    best, _ = _best(scored)
    row = next(r for r in history if r["round"] == best)
    note = f"chosen by {metric} on the test items: optimistic, shown only because the paper does so"
    return {"round": best, "by": f"highest test {metric}", "note": note, "test": row["test"]}


def series(
    history: Sequence[MetricRow], split: str, ranking: str, name: str
) -> list[tuple[int, float]]:
    """Return (round, value) of every row that holds, for example, validation sampled hr@10."""
    cells = [(row["round"], _cell(row, split, ranking, name)) for row in history]
    return [(number, value) for number, value in cells if value is not None]


def _cell(row: Mapping[str, Any], split: str, ranking: str, name: str) -> float | None:
    value = ((row.get(split) or {}).get(ranking) or {}).get(name, {}).get("value")
    return None if value is None else float(value)


def _best(scored: list[tuple[int, float]]) -> tuple[int, float]:
    return max(scored, key=lambda pair: (pair[1], -pair[0]))


def training_summary(history: Sequence[MetricRow]) -> dict[str, Any]:
    """Return the last loss, sums of replies, failures and seconds, and mean bytes per user."""
    rows: Sequence[Mapping[str, Any]] = history

    def column(name: str) -> list[float]:
        return [row[name] for row in rows if row.get(name) is not None]

    def mean(numbers: list[float]) -> float | None:
        return sum(numbers) / len(numbers) if numbers else None

    losses = column("loss")
    return {
        "last_loss": losses[-1] if losses else None,
        "replies": sum(column("replies")),
        "failures": sum(column("failures")),
        "bytes_up_per_user": mean(column("bytes_up_per_user")),
        "bytes_down_per_user": mean(column("bytes_down_per_user")),
        "seconds": sum(column("seconds")),
    }
