"""Warnings about metrics that are too good, too bad, or no better than no model at all."""

from collections.abc import Mapping
from typing import Any

__all__ = ["LEAKY", "sanity_warnings"]

LEAKY = (
    "LEAKED NEGATIVES (negatives=leaky): training never drew the held-out items as negatives, "
    "which gives them away; these numbers compare with nothing but published ones made the same way"
)

_WATCHED = ("hr@10", "ndcg@10")
_TOO_GOOD = 0.99
_NORMAL_975 = 1.96


def sanity_warnings(report: Mapping[str, Any], split: str) -> list[str]:
    """One line for each suspicious metric of a report (``[]`` when all is well).

    Looks at hr@10 and ndcg@10 (or at what else was asked for) of both rankings beside ``chance``,
    ``popularity`` and the paired ``difference`` to popularity, all in the report.
    """
    found = []
    for ranking in ("sampled", "full"):
        cells = report[split][ranking]
        for name in [n for n in _WATCHED if n in cells] or cells:
            cell = report[split][ranking][name]
            chance = report["chance"][ranking][name]["value"]
            if cell["value"] is None or chance > _TOO_GOOD:  # a list that holds every rival
                continue
            found += _extremes(f"{ranking} {name}", cell["value"])
            # One line a metric is enough: at chance, popularity is out of reach anyway.
            found += _chance(f"{ranking} {name}", cell, chance) or _popularity(
                ranking, name, cell["value"], report
            )
    found += _never_trained(report["users"])
    evaluated, eligible = report["users"]["evaluated"], report["users"]["eligible"]
    if evaluated < eligible:
        found.append(f"only {evaluated} of {eligible} users with a held-out item were evaluated")
    return found


def _extremes(name: str, value: float) -> list[str]:
    if value > _TOO_GOOD:
        return [f"{name} is {value:.4f}: does the model see the held-out items, or are there few?"]
    if value == 0:
        return [f"{name} is exactly 0: no user's held-out item is found"]
    return []


def _chance(name: str, cell: Mapping[str, Any], chance: float) -> list[str]:
    if abs(cell["value"] - chance) > _NORMAL_975 * (cell["se"] or 0.0):
        return []
    return [f"{name} is {cell['value']:.4f}, no different from chance ({chance:.4f})"]


def _popularity(ranking: str, name: str, value: float, report: Mapping[str, Any]) -> list[str]:
    popular = report["popularity"][ranking][name]["value"]
    delta = report["difference"][ranking][name]
    if value >= popular:
        return []
    se = "" if delta["se"] is None else f" ± {delta['se']:.4f}"
    return [
        f"{ranking} {name} is {value:.4f}, below popularity ({popular:.4f}): "
        f"difference {delta['value']:+.4f}{se}"
    ]


def _never_trained(users: Mapping[str, Any]) -> list[str]:
    evaluated, trained = users["evaluated"], users["trained_only"]["evaluated"]
    if evaluated == 0 or trained >= evaluated / 2:
        return []
    return [
        f"{evaluated - trained} of {evaluated} evaluated users were never trained: their private "
        "parameters are the initial ones; users.trained_only is without them"
    ]
