"""What a run has to say at its end: ``result.json`` and the table on the screen.

`build_report` measures a model once on the test items, beside popularity and chance, over users
and items counted; `assemble` adds which round it is and how it was chosen; `table` prints it. All
are aggregates: no id, no row and no number of a single user stands in them.
"""

import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedrecgel
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.evaluation import (
    HeldOut,
    PersonalView,
    held_out,
    rank_among_candidates,
    rank_and_list,
    top_k,
)
from fedrecgel.common.metrics import RankCounts, paired_difference
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
    choose_round,
    training_summary,
)
from fedrecgel.simulation.sanity import sanity_warnings
from fedrecgel.simulation.table import table

__all__ = [
    "MetricRow",
    "assemble",
    "best_by_test",
    "build_report",
    "choose_round",
    "mean_overlap",
    "overlap_between_users",
    "paired_difference",
    "report_of_ranks",
    "table",
    "versions",
    "write_json",
]

TOP = 10
"""Length of the lists whose overlap is measured."""

DEFINITIONS = {
    "sampled": "the held-out item among at most 99 items the user never interacted with; "
    "comparable with published tables, not with the full ranking",
    "full": "the held-out item among all items but the user's other interactions before it",
    "weighting": "every evaluated user counts once; se is the standard error over users",
    "ties": "the rank is uniform over the tied places; metrics are expectations",
    "model": "shared parameters of the chosen round with each user's private parameters as that "
    "round found them; users never trained keep their initial ones",
    "overlap": "mean number of items, of ten, that two users' lists share; lists leave out what "
    "the user has interacted with and break ties by item index",
}


def build_report(
    dataset: Dataset,
    view: PersonalView,
    *,
    split: str = "test",
    trained_users: NDArray[np.bool_],
    trained_items: NDArray[np.bool_],
    users: NDArray[np.int64] | None = None,
) -> dict[str, Any]:
    """Measure ``view`` on ``split``, once, with everything needed to judge the numbers.

    Parameters
    ----------
    trained_users, trained_items
        (N,) and (M,): which users took part in a round, which item rows a user has updated.
    users
        Dataset index of each row of the view (default: all users in order). Fewer users show as
        ``evaluated`` below ``eligible``; references are computed on the same users.
    """
    who = np.arange(dataset.num_users) if users is None else users
    held = held_out(dataset, split, users)
    full, lists = rank_and_list(view, held.positives, held.excluded, TOP)
    model = {"sampled": rank_among_candidates(view, held.positives, held.candidates), "full": full}
    return report_of_ranks(
        dataset,
        {ranking: RankCounts(c.greater, c.ties, who[c.users]) for ranking, c in model.items()},
        lists,
        split=split,
        trained_users=trained_users,
        trained_items=trained_items,
    )


def report_of_ranks(
    dataset: Dataset,
    model: dict[str, RankCounts],
    lists: NDArray[np.int64],
    *,
    split: str = "test",
    trained_users: NDArray[np.bool_],
    trained_items: NDArray[np.bool_],
) -> dict[str, Any]:
    """`build_report` from ranks and top-ten lists (n, 10) that were found before.

    ``users`` of the ranks are data set indices here, the same for both rankings.
    """
    users = model["full"].users
    held = held_out(dataset, split, users)
    own = RankCounts(model["full"].greater, model["full"].ties)
    popular, chance = popularity_counts(dataset, held), chance_counts(held, dataset.num_items)
    report: dict[str, Any] = {
        split: values(model),
        "popularity": values(popular),
        "chance": values(chance),
        "difference": {
            r: paired_difference(RankCounts(c.greater, c.ties), popular[r])
            for r, c in model.items()
        },
        "users": _users(dataset, split, model, trained_users, trained_users[users]),
        "items": _items(model, trained_items, trained_items[held.positives]),
        "candidates": _candidates(held),
        "overlap": _overlap(dataset, held, own, lists),
        "split": split,
        "data": {
            "name": dataset.name,
            "protocol": dataset.protocol,
            "seed": dataset.manifest.seed,
            "hash": dataset.hash,
        },
        "versions": versions(),
        "definitions": DEFINITIONS,
    }
    report["warnings"] = sanity_warnings(report, split)
    if split == "test" and np.any(np.asarray(dataset.validation_items) >= 0):
        report["validation_popularity"] = popularity_report(dataset, "validation")
    return report


def _users(
    dataset: Dataset,
    split: str,
    model: dict[str, RankCounts],
    trained_users: NDArray[np.bool_],
    trained: NDArray[np.bool_],
) -> dict[str, Any]:
    eligible = dataset.test_items if split == "test" else dataset.validation_items
    return {
        "all": dataset.num_users,
        "eligible": int(np.count_nonzero(np.asarray(eligible) >= 0)),
        "evaluated": len(model["full"]),
        "never_trained": int(np.count_nonzero(~trained_users)),
        "trained_only": _part(model, trained),
    }


def _items(
    model: dict[str, RankCounts], trained_items: NDArray[np.bool_], trained: NDArray[np.bool_]
) -> dict[str, Any]:
    unseen = int(np.count_nonzero(~trained))
    return {
        "all": len(trained_items),
        "never_trained": int(np.count_nonzero(~trained_items)),
        "positives_never_trained": unseen,
        "positives_never_trained_share": unseen / len(trained) if len(trained) else None,
        "trained_positives_only": _part(model, trained),
    }


def _part(model: dict[str, RankCounts], mask: NDArray[np.bool_]) -> dict[str, Any]:
    evaluated = int(np.count_nonzero(mask))
    return {"evaluated": evaluated, **values({r: c.select(mask) for r, c in model.items()})}


def _candidates(held: HeldOut) -> dict[str, int | None]:
    evaluated = np.asarray(held.positives) >= 0
    lengths = np.count_nonzero(np.asarray(held.candidates)[evaluated] >= 0, axis=1)
    if not len(lengths):
        return {"fewest": None, "most": None}
    return {"fewest": int(lengths.min()), "most": int(lengths.max())}


def _overlap(
    dataset: Dataset, held: HeldOut, ranked: RankCounts, lists: NDArray[np.int64]
) -> dict[str, float | None]:
    view = PopularityView.of(dataset, len(held.positives))
    unseen = top_k(view, ranked.users, TOP, held.excluded)
    most = np.argsort(-dataset.train_counts, kind="stable")[:TOP]
    return {
        "between_users": overlap_between_users(lists, dataset.num_items),
        "with_ten_most_popular": mean_overlap(lists, np.tile(most, (len(lists), 1))),
        "with_popularity_list": mean_overlap(lists, unseen),
    }


def overlap_between_users(lists: NDArray[np.int64], num_items: int) -> float | None:
    """Return the mean number of items that two of the lists (n, k) share, over all pairs.

    -1 is padding; None below two lists. An item in c lists is shared by c (c - 1) / 2 pairs, so no
    pair is ever looked at.
    """
    users = len(lists)
    if users < 2:
        return None
    counts = np.bincount(lists[lists >= 0], minlength=num_items).astype(np.float64)
    return float((counts * (counts - 1)).sum() / (users * (users - 1)))


def mean_overlap(a: NDArray[np.int64], b: NDArray[np.int64]) -> float | None:
    """Return the mean number of items that ``a[i]`` and ``b[i]`` share; -1 is padding."""
    if not len(a):
        return None
    shared = (a[:, :, None] == b[:, None, :]) & (a[:, :, None] >= 0)
    return float(np.count_nonzero(shared) / len(a))


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
        What `choose_round` returned for the round that ``report`` measured.
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
    """Return the versions of everything that can change a number."""
    packages = ("flwr", "torch", "numpy", "pandas")
    installed = {name: importlib.metadata.version(name) for name in packages}
    return {"python": platform.python_version(), "fedrecgel": fedrecgel.__version__, **installed}


def write_json(path: Path, obj: object) -> None:
    """Write ``obj`` so that the file is either complete or as it was. A nan is our defect."""
    text = json.dumps(obj, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text + "\n", encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _plain(obj: object) -> object:
    if isinstance(obj, np.generic):
        return obj.item()
    if isinstance(obj, Path):
        return str(obj)
    raise TypeError(f"{type(obj).__name__} has no place in a result file")
