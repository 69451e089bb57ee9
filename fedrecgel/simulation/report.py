"""What a run has to say at its end: ``result.json`` and the table on the screen.

`build_report` measures a model once on the test items, beside popularity and chance, over users
and items counted; `assemble` adds which round it is and how it was chosen; `table` prints it. All
are aggregates: no id, no row and no number of a single user stands in them.
"""

import importlib.metadata
import platform
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedrecgel
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.evaluation import (
    PersonalView,
    held_out,
    rank_among_candidates,
    rank_and_list,
    top_k,
)
from fedrecgel.common.metrics import (
    CUTOFFS,
    MetricValue,
    RankCounts,
    metric,
    metric_names,
)
from fedrecgel.common.processor import processor
from fedrecgel.common.rank_several import held_out_lists, rank_several
from fedrecgel.common.resampling import bootstrap_interval, paired_difference
from fedrecgel.common.several import values_of_several
from fedrecgel.simulation.counted import count_candidates, count_items, count_users
from fedrecgel.simulation.definitions import COMPARABLE, DEFINITIONS
from fedrecgel.simulation.groups import by_activity, by_popularity
from fedrecgel.simulation.lists import (
    TOP,
    describe_lists,
    mean_overlap,
    overlap_between_users,
)
from fedrecgel.simulation.references import (
    PopularityView,
    chance_counts,
    popularity_counts,
    popularity_report,
    values,
)
from fedrecgel.simulation.rounds import (
    MetricRow,
    best_by_test,
    training_summary,
)
from fedrecgel.simulation.sanity import sanity_warnings
from fedrecgel.simulation.table import table

__all__ = [
    "NAMES",
    "SHOWN_KINDS",
    "MetricRow",
    "assemble",
    "best_by_test",
    "build_report",
    "mean_overlap",
    "overlap_between_users",
    "paired_difference",
    "report_of_ranks",
    "several_report",
    "table",
    "versions",
    "with_sums",
]

SHOWN_KINDS = ("hr", "ndcg", "mrr")
"""What differs where one item is held out; the other kinds follow from these."""

NAMES = metric_names(CUTOFFS, SHOWN_KINDS)


def build_report(
    dataset: Dataset,
    view: PersonalView,
    *,
    split: str = "test",
    trained_users: NDArray[np.bool_],
    trained_items: NDArray[np.bool_],
    users: NDArray[np.int64] | None = None,
    names: Iterable[str] = NAMES,
) -> dict[str, Any]:
    """Measure ``view`` on ``split``, once, with everything needed to judge the numbers.

    Parameters
    ----------
    trained_users, trained_items
        (N,) and (M,): which users took part in a round, which item rows a user has updated.
    users
        Dataset index of each row of the view (default: all users in order). Fewer users show as
        ``evaluated`` below ``eligible``; references are computed on the same users.
    names
        Metrics to report, for example ``metric_names([1, 100], ["hr", "map"])``. By default
        ``several`` has the kinds that only differ there as well.
    """
    names = tuple(names)
    who = np.arange(dataset.num_users) if users is None else users
    held = held_out(dataset, split, users)
    full, lists = rank_and_list(view, held.positives, held.excluded, TOP)
    model = {"sampled": rank_among_candidates(view, held.positives, held.candidates), "full": full}
    report = report_of_ranks(
        dataset,
        {ranking: RankCounts(c.greater, c.ties, who[c.users]) for ranking, c in model.items()},
        lists,
        split=split,
        trained_users=trained_users,
        trained_items=trained_items,
        names=names,
    )
    if dataset.several:
        asked = metric_names(CUTOFFS) if names == tuple(NAMES) else names
        report["several"] = several_report(dataset, view, split, users, asked)
    return report


def several_report(
    dataset: Dataset,
    view: PersonalView,
    split: str,
    users: NDArray[np.int64] | None = None,
    names: Iterable[str] = metric_names(CUTOFFS),
) -> dict[str, Any]:
    """Measure all held-out items of each user, where a split has several, beside popularity."""
    held = held_out_lists(dataset, split, users)
    lengths = np.diff(held.positives.offsets)
    lengths = lengths[lengths > 0]
    names = tuple(names)
    popular = PopularityView.of(dataset, len(held.positives))
    found: dict[str, Any] = {
        "evaluated": len(lengths),
        "mean_positives": float(lengths.mean()) if len(lengths) else None,
    }
    for who, ranked in (("model", view), ("popularity", popular)):
        found[who] = {
            ranking: values_of_several(rank_several(ranked, held, full=full), names)
            for ranking, full in (("sampled", False), ("full", True))
        }
    return found


def report_of_ranks(
    dataset: Dataset,
    model: dict[str, RankCounts],
    lists: NDArray[np.int64],
    *,
    split: str = "test",
    trained_users: NDArray[np.bool_],
    trained_items: NDArray[np.bool_],
    names: Iterable[str] = NAMES,
) -> dict[str, Any]:
    """`build_report` from ranks and top-ten lists (n, 10) that were found before.

    ``users`` of the ranks are data set indices here, the same for both rankings.
    """
    names = tuple(names)
    users = model["full"].users
    held = held_out(dataset, split, users)
    own = {ranking: RankCounts(c.greater, c.ties) for ranking, c in model.items()}
    popular, chance = popularity_counts(dataset, held), chance_counts(held, dataset.num_items)
    both = {"model": own, "popularity": popular}
    unseen = top_k(PopularityView.of(dataset, len(users)), own["full"].users, TOP, held.excluded)
    report: dict[str, Any] = {
        split: values(own, names),
        "popularity": values(popular, names),
        "chance": values(chance, names),
        "difference": {r: paired_difference(c, popular[r], names) for r, c in own.items()},
        "intervals": {r: _intervals(c, names) for r, c in own.items()},
        "users": count_users(dataset, split, model, trained_users, trained_users[users]),
        "items": count_items(model, trained_items, trained_items[held.positives]),
        "groups": {
            "item_popularity": by_popularity(dataset, both, np.asarray(held.positives)),
            "user_activity": by_activity(dataset, both, users),
        },
        "candidates": count_candidates(held),
        "lists": {
            "model": describe_lists(lists, dataset),
            "popularity": describe_lists(unseen, dataset),
        },
        "overlap": _overlap(dataset, unseen, lists),
        "split": split,
        "data": {
            "name": dataset.name,
            "protocol": dataset.protocol,
            "seed": dataset.manifest.seed,
            "hash": dataset.hash,
        },
        "versions": versions(),
        "definitions": DEFINITIONS,
        "comparable": COMPARABLE,
    }
    report["warnings"] = sanity_warnings(report, split)
    if split == "test" and np.any(np.asarray(dataset.validation_items) >= 0):
        report["validation_popularity"] = popularity_report(dataset, "validation")
    return report


def _intervals(counts: RankCounts, names: Iterable[str]) -> dict[str, dict[str, float] | None]:
    found = {name: bootstrap_interval(metric(name, counts)) for name in names}
    return {n: None if i is None else {"low": i[0], "high": i[1]} for n, i in found.items()}


def _overlap(
    dataset: Dataset, unseen: NDArray[np.int64], lists: NDArray[np.int64]
) -> dict[str, float | None]:
    most = np.argsort(-dataset.train_counts, kind="stable")[:TOP]
    return {
        "between_users": overlap_between_users(lists, dataset.num_items),
        "with_ten_most_popular": mean_overlap(lists, np.tile(most, (len(lists), 1))),
        "with_popularity_list": mean_overlap(lists, unseen),
    }


def with_sums(
    report: Mapping[str, Any], sums: Mapping[str, Mapping[str, MetricValue]]
) -> dict[str, Any]:
    """Put the sums that nodes sent (`MetricSums.values` by ranking) over the report's own cells.

    The federation's sums are the result; the ranks that the report is made of only add what sums
    cannot tell, such as further metrics.
    """
    split = report["split"]
    return {**report, split: {r: {**report[split][r], **cells} for r, cells in sums.items()}}


def assemble(
    report: Mapping[str, Any],
    history: Sequence[MetricRow],
    *,
    algorithm: str,
    seed: int,
    rounds: int,
    chosen: Mapping[str, Any],
    **more: object,
) -> dict[str, Any]:
    """Return the content of ``result.json``: `build_report` with the story of the run around it.

    Parameters
    ----------
    chosen
        The round that ``report`` measured, and by what it was chosen.
    more
        Further entries, such as ``config_hash`` or ``preset``.
    """
    result = {
        "format": 1,
        "algorithm": algorithm,
        "seed": seed,
        "round": {**chosen, "trained": rounds},
        **report,
        "training": training_summary(history),
        **more,
    }
    by_test = best_by_test(history) if report["data"]["protocol"] == "paper" else None
    return result if by_test is None else {**result, "best_by_test": by_test}


def versions() -> dict[str, str]:
    """Return the versions of everything that can change a number, the processor included."""
    packages = ("flwr", "torch", "numpy", "pandas")
    installed = {name: importlib.metadata.version(name) for name in packages}
    own = {"python": platform.python_version(), "fedrecgel": fedrecgel.__version__}
    return {**own, **installed, "processor": processor()}
