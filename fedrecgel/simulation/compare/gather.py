"""From finished cells to the rows of the table: means, intervals, tests, costs and caveats."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.config import Scalar
from fedrecgel.common.metrics import RankCounts, metric
from fedrecgel.common.resampling import holm
from fedrecgel.simulation.compare.evidence import Each, paired_bootstrap, t_interval
from fedrecgel.simulation.rounds import MetricRow, series

__all__ = ["METRICS", "Measured", "Row", "against_best", "curve"]

METRICS = ("sampled.hr@10", "sampled.ndcg@10", "full.hr@10", "full.ndcg@10")
"""Of which each has a best method, an interval and a family of tests of its own."""

_COLUMNS = {"sampled": (1, 2), "full": (3, 4)}


@dataclass
class Row:
    """A row of one data set's table, filled as far as its cells are there.

    Attributes
    ----------
    kind
        ``federated`` or ``reference``.
    status
        ``done``; ``partial``: some seeds are missing; ``missing``, ``failed``, ``infeasible``.
    notes
        A line for each cell that is not there, with the reason.
    settings
        Chosen ones that differ from the defaults.
    trials
        Each with its settings (differences to the first) and its validation score.
    curve
        Validation over rounds: round, mean, lowest and highest of the seeds.
    """

    label: str
    kind: str
    status: str
    about: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    settings: dict[str, Scalar] = field(default_factory=dict)
    trials: list[dict[str, Any]] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)
    curve: list[tuple[int, float, float, float]] = field(default_factory=list)
    measured: "Measured | None" = None
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        told = {**self.__dict__}
        measured = told.pop("measured")
        return {**told, **(measured.to_json() if measured is not None else {})}


@dataclass
class Measured:
    """What the finished seeds of a row say.

    Attributes
    ----------
    users
        (n,) who was evaluated, in every seed.
    each
        (seeds, n) values of every metric.
    """

    users: NDArray[np.int64]
    each: dict[str, Each]
    figures: dict[str, Any]

    @classmethod
    def of(
        cls, ranks: Sequence[NDArray[np.int64]], results: Sequence[Mapping[str, Any]]
    ) -> "Measured":
        """From the ranks (n, 5) and the results of one or more seeds on the same users."""
        users = ranks[0][:, 0]
        assert all(np.array_equal(one[:, 0], users) for one in ranks)
        each = {}
        for name in METRICS:
            ranking, _, short = name.partition(".")
            columns = _COLUMNS[ranking]
            counts = [RankCounts(*(one[:, c] for c in columns)) for one in ranks]
            each[name] = np.stack([metric(short, one) for one in counts])
        return cls(users, each, _figures(results))

    def to_json(self) -> dict[str, Any]:
        """Means, intervals and figures; nothing of a single user."""
        metrics = {}
        for name, each in self.each.items():
            by_seed = each.mean(axis=1).tolist()
            interval = t_interval(by_seed)
            low, high = interval or (None, None)
            mean = float(np.mean(by_seed))
            metrics[name] = {"mean": mean, "low": low, "high": high, "seeds": by_seed}
        return {"metrics": metrics, "evaluated": len(self.users), **self.figures}


def _figures(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def mean(*path: str) -> float | None:
        found = []
        for value in results:
            cell: Any = value
            for name in path:
                cell = cell.get(name) if isinstance(cell, Mapping) else None
            if cell is not None:
                found.append(float(cell))
        return sum(found) / len(found) if found else None

    users = results[0]["users"]
    never = mean("users", "never_trained")
    groups = ("groups", "item_popularity")
    figures: dict[str, Any] = {
        "eligible": users["eligible"],
        "users": users["all"],
        "bytes_up": mean("training", "bytes_up_per_user"),
        "bytes_down": mean("training", "bytes_down_per_user"),
        "never_trained": None if never is None or not users["all"] else never / users["all"],
        "overlap": mean("overlap", "between_users"),
        "coverage": mean("lists", "model", "coverage"),
        **{g: mean(*groups, g, "model", "full", "hr@10", "value") for g in ("head", "tail")},
        "rounds_chosen": [r["round"]["chosen"] for r in results if "round" in r],
        "warnings": sorted({line for r in results for line in r.get("warnings", ())}),
    }
    figures["cpu_per_round"] = mean("cpu_per_round")
    figures["seconds"] = mean("seconds")
    figures["trials_inside"] = results[0].get("trials")
    return figures


def curve(
    histories: Sequence[Sequence[MetricRow]], name: str
) -> list[tuple[int, float, float, float]]:
    """Validation metric ``name`` over the rounds that all seeds have evaluated."""
    ranking, _, short = name.partition(".")
    points = [dict(series(lines, "validation", ranking, short)) for lines in histories]
    shared = sorted(set.intersection(*(set(each) for each in points))) if points else []
    found = []
    for number in shared:
        values = [each[number] for each in points]
        found.append((number, sum(values) / len(values), min(values), max(values)))
    return found


def against_best(rows: Sequence[Row]) -> None:
    """Put into ``tests`` of every row its paired bootstrap against the best federated one.

    For each metric: the best is the federated row with the highest mean; Holm's correction is over
    the other federated rows, and by itself over the references, which only give the scale. A
    federated row of which a single seed is there takes no part where others have more.
    """
    measured = [row for row in rows if row.measured is not None]
    references = [row for row in measured if row.kind == "reference"]
    federated = [row for row in measured if row.kind == "federated"]
    # What one seed says beside others' several has no noise to count with.
    federated = [row for row in federated if len(row.seeds) > 1] or federated
    for name in METRICS if federated else ():
        best = max(federated, key=lambda row: float(_each(row, name).mean()))
        best.tests[name] = {"best": True}
        assert best.measured is not None
        users = best.measured.users
        for kind in (federated, references):
            family = [row for row in kind if row is not best]
            same = [r for r in family if np.array_equal(_users(r), users)]
            found = paired_bootstrap(_each(best, name), [_each(row, name) for row in same])
            adjusted = holm([cell["p"] for cell in found])
            for row, cell, p in zip(same, found, adjusted, strict=True):
                row.tests[name] = {"best": False, "against": best.label, **cell, "p_holm": p}


def _each(row: Row, name: str) -> Each:
    assert row.measured is not None
    return row.measured.each[name]


def _users(row: Row) -> NDArray[np.int64]:
    assert row.measured is not None
    return row.measured.users
