"""Look at a file of interactions as ``prepare`` would read it, and say what is odd about it."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.build import hashed_order
from fedrecgel.common.data.candidates import NUM_CANDIDATES
from fedrecgel.common.data.distributions import describe_counts
from fedrecgel.common.data.files import stored
from fedrecgel.common.data.findings import find_problems
from fedrecgel.common.data.leakage import measure_leakage
from fedrecgel.common.data.sources import Options, Source, open_source
from fedrecgel.common.data.split import Events, leave_one_out, one_per_pair
from fedrecgel.common.data.summary import count_events
from fedrecgel.common.data.synthetic import SyntheticSettings

FORMAT = "fedrecgel-inspection"
FORMAT_VERSION = 1


@dataclass(frozen=True)
class Inspection:
    """What was found, and the numbers that a picture of it needs."""

    report: dict[str, object]
    """For programs: plain values; the text is made of it."""
    activity: NDArray[np.int64]
    """Number of different items of each user."""
    popularity: NDArray[np.int64]
    """Number of different users of each item."""
    times: NDArray[np.int64] | NDArray[np.float64]
    """Of the rows that have one."""


def inspect(
    source: str | Path,
    options: Options | None = None,
    *,
    threshold: float | None = None,
    num_candidates: int = NUM_CANDIDATES,
    strict: bool = False,
) -> Inspection:
    """Read a source (anything that ``prepare`` takes) and describe it; nothing is written.

    ``options`` are the settings of ``read_interactions``. Bad rows never make a refusal here.
    """
    settings = {"most_bad": 1.0, **(options or {})}
    with stored(source) as path:
        opened = open_source(path, settings, threshold, strict, SyntheticSettings(1_000), 0)
        if path != source:
            opened.facts["file"] = "standard input"
        return _describe(opened, num_candidates)


def _describe(source: Source, num_candidates: int) -> Inspection:
    raw = source.interactions
    pairs = one_per_pair(raw.events)
    activity = _positive(np.bincount(pairs.user))
    popularity = _positive(np.bincount(pairs.item))
    times = raw.events.time[raw.events.timed]
    split = leave_one_out(hashed_order(raw, pairs, seed=0))
    leakage = measure_leakage(split) if len(times) else None
    reading = {"repeated_headers": 0, "blank_lines": 0, **raw.report}
    report: dict[str, object] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "source": source.facts,
        "threshold": source.threshold,
        "reading": reading,
        "rows": len(raw.events),
        "ids": {
            "user": _describe_ids(raw.user_ids, raw.events.users),
            "item": _describe_ids(raw.item_ids, raw.events.items),
        },
        "pairs": count_events(pairs),
        "duplicates": _duplicates(raw.events, pairs),
        "activity": describe_counts(activity),
        "popularity": describe_counts(popularity),
        "users_below_5": int((activity < 5).sum()),
        "items_below_5": int((popularity < 5).sum()),
        "users_with_ties": split.tied_users,
        "users_with_fewer_candidates": int((activity > len(popularity) - num_candidates).sum()),
        "num_candidates": num_candidates,
        "leakage": {"leave-one-out": leakage} if leakage else None,
    }
    report["problems"] = find_problems(report)
    return Inspection(report, activity, popularity, times)


def _positive(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return counts[counts > 0]


def _describe_ids(ids: NDArray[np.str_], used: NDArray[np.int64]) -> dict[str, object]:
    there = ids[used]
    whole = all(str(name).lstrip("+-").isdigit() for name in there[:10_000])
    capitals = len(there) - len({str(name).lower() for name in there})
    return {
        "count": len(there),
        "kind": "whole numbers" if whole else "text",
        "first": str(there[0]),
        "last": str(there[-1]),
        "differ_only_in_capitals": capitals,
    }


def _duplicates(events: Events, pairs: Events) -> dict[str, object]:
    """Count rows beyond the first of their pair, and the pairs and users that have some."""
    extra = len(events) - len(pairs)
    if not extra:
        return {"rows": 0, "users": 0}
    more = np.bincount(events.user) - np.bincount(pairs.user)
    return {"rows": extra, "users": int((more > 0).sum())}
