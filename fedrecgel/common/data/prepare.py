"""From a source of interactions to a prepared data set, each step counted."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.candidates import draw_candidates
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.manifest import Manifest, library_versions
from fedrecgel.common.data.sources import SYNTHETIC, Source, open_source
from fedrecgel.common.data.split import (
    TEST,
    TRAIN,
    VALIDATION,
    Events,
    Split,
    active_users,
    hashed_ties,
    latest_per_pair,
    leave_one_out,
    lowest_item_last,
)
from fedrecgel.common.data.store import check_target, write_data_set
from fedrecgel.common.data.synthetic import SyntheticSettings
from fedrecgel.common.errors import ConfigError, DataError
from fedrecgel.common.hashing import Keys, integers, mix, user_keys

PROTOCOLS = ("default", "paper")
PARTS = ("train", "validation", "test")


def prepare(
    source: str | Path,
    out: str | Path,
    *,
    protocol: str = "default",
    seed: int = 0,
    min_interactions: int = 5,
    user_column: str | int | None = None,
    item_column: str | int | None = None,
    time_column: str | int | None = None,
    rating_column: str | int | None = None,
    separator: str | None = None,
    threshold: float | None = None,
    strict: bool = False,
    num_candidates: int = 99,
    users: int = 1_000,
    items: int | None = None,
    interactions: float | None = None,
    users_per_item: float | None = None,
    disagreement: float = 0.5,
    overwrite: bool = False,
) -> Dataset:
    """Prepare interactions for training and write them to a folder.

    Parameters
    ----------
    source
        A known name (filmtrust, lastfm-2k, amazon-video, qb-article, ml-100k, ml-1m), ``synthetic``,
        or a CSV, TSV or Parquet file or a folder of such parts.
    out
        The folder to make.
    protocol
        ``default``: one row per (user, item), the latest; last item test, second last validation;
        equal and missing times by a seeded rule. ``paper``: the preparation of the FedRecGEL paper:
        duplicates kept, no validation, missing times invented, ties to the lowest item id.
    seed
        Of ties, invented times, candidates and synthetic data.
    min_interactions
        Users with fewer are left out, in a single pass; items are not filtered.
    user_column, item_column, time_column, rating_column, separator, threshold, strict
        See ``read_interactions``.
    num_candidates
        Never-interacted items drawn for each held-out item.
    users, items, interactions, users_per_item, disagreement
        Of ``synthetic``: see ``SyntheticSettings``.
    overwrite
        Whether ``out`` may be a prepared data set, to be replaced.

    Returns
    -------
    Dataset
        Opened from ``out``; its manifest holds the report.
    """
    _check(protocol, min_interactions, num_candidates)
    target = Path(out)
    check_target(target, overwrite=overwrite)
    options = {
        "user_column": user_column,
        "item_column": item_column,
        "time_column": time_column,
        "rating_column": rating_column,
        "separator": separator,
    }
    synthetic = SyntheticSettings(users, items, interactions, users_per_item, disagreement)
    opened = open_source(source, options, threshold, strict, synthetic, seed)
    built = _build(opened, protocol, seed, min_interactions, num_candidates)
    manifest = Manifest(
        name=opened.name,
        protocol=protocol,
        seed=seed,
        command=_command(source, target, protocol, seed, min_interactions, options, opened),
        source=opened.facts,
        rules=_rules(protocol, opened, min_interactions, num_candidates),
        statistics=built.statistics,
        report=built.report,
        versions=library_versions(),
    )
    write_data_set(target, manifest, built.arrays, built.tables, overwrite=overwrite)
    return Dataset.load(target)


@dataclass(frozen=True)
class _Built:
    arrays: dict[str, NDArray[np.generic]]
    tables: dict[str, dict[str, NDArray[np.generic]]]
    statistics: dict[str, dict[str, object]]
    report: dict[str, object]


def _check(protocol: str, min_interactions: int, num_candidates: int) -> None:
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol {protocol!r} is unknown; it is one of {', '.join(PROTOCOLS)}")
    if min_interactions < 0:
        raise ConfigError(f"min-interactions is {min_interactions}; it must be 0 or more")
    if num_candidates < 1:
        raise ConfigError(f"num-candidates is {num_candidates}; it must be 1 or more")


def _build(
    source: Source, protocol: str, seed: int, min_interactions: int, num_candidates: int
) -> _Built:
    raw = source.interactions
    paper = protocol == "paper"
    events = raw.events
    if paper:
        events = _paper_times(source, seed)
    single = events if paper else latest_per_pair(events)
    active = active_users(single, len(raw.user_ids), min_interactions)
    kept = single.take(active[single.user])
    if not len(kept):
        raise DataError(
            f"{source.name}: no user has {min_interactions} interactions; lower --min-interactions"
        )
    users, user = np.unique(kept.user, return_inverse=True)
    items, item = np.unique(kept.item, return_inverse=True)
    kept = Events(user, item, kept.time, kept.timed)
    user_ids, item_ids = raw.user_ids[users], raw.item_ids[items]
    keys = user_keys(str(i) for i in user_ids)
    ties = (
        lowest_item_last(kept)
        if paper
        else hashed_ties(seed, kept, keys, user_keys(str(i) for i in item_ids))
    )
    split = leave_one_out(kept, ties, validation=not paper)
    arrays = _arrays(split, user_ids, item_ids, keys, seed, num_candidates)
    below = len(np.unique(single.user)) - len(users)
    report = {
        **raw.report,
        "duplicates_merged": len(events) - len(single),
        "users_below_minimum": below,
        "rows_below_minimum": len(single) - len(kept),
        "rows_kept": len(kept),
        "users_with_ties": split.tied_users,
    }
    statistics = {
        "raw": _statistics(raw.events),
        "filtered": _statistics(kept),
        "split": _split_statistics(split, arrays, num_candidates),
    }
    return _Built(arrays, _tables(split, arrays), statistics, report)


def _paper_times(source: Source, seed: int) -> Events:
    """Give times to events that have none: the order of the file, or invented ones."""
    raw, events = source.interactions, source.interactions.events
    if source.file_order:
        order = np.arange(len(events))
        return Events(events.user, events.item, order, np.ones(len(events), dtype=bool))
    if events.timed.all():
        return events
    known = events.time[events.timed]
    low, high = (known.min(), known.max()) if len(known) else (0, 2**31)
    keys_user = user_keys(str(i) for i in raw.user_ids)
    keys_item = user_keys(str(i) for i in raw.item_ids)
    keys = mix(seed, "invented time", keys_user[events.user], keys_item[events.item])
    invented = low + integers(keys, max(int(high - low), 1))
    time = np.where(events.timed, events.time, invented)
    return Events(events.user, events.item, time, np.ones(len(events), dtype=bool))


def _arrays(
    split: Split,
    user_ids: NDArray[np.str_],
    item_ids: NDArray[np.str_],
    keys: Keys,
    seed: int,
    num_candidates: int,
) -> dict[str, NDArray[np.generic]]:
    events, part = split.events, split.part
    train = part == TRAIN
    counts = np.bincount(events.user[train], minlength=len(user_ids))
    arrays: dict[str, NDArray[np.generic]] = {
        "user_ids": user_ids,
        "item_ids": item_ids,
        "train_items": events.item[train].astype(np.int32),
        "train_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    }
    for name, value in (("validation", VALIDATION), ("test", TEST)):
        held_out = np.full(len(user_ids), -1, dtype=np.int32)
        held_out[events.user[part == value]] = events.item[part == value]
        has_one = held_out >= 0
        candidates = np.full((len(user_ids), num_candidates), -1, dtype=np.int32)
        if has_one.any():
            candidates = draw_candidates(
                seed, name, keys, events.user, events.item, len(item_ids), num_candidates
            )
            candidates[~has_one] = -1
        arrays[f"{name}_items"] = held_out
        arrays[f"{name}_candidates"] = candidates
    return arrays


def _tables(
    split: Split, arrays: dict[str, NDArray[np.generic]]
) -> dict[str, dict[str, NDArray[np.generic]]]:
    events = split.events
    train = split.part == TRAIN
    user_ids, item_ids = arrays["user_ids"], arrays["item_ids"]
    interactions: dict[str, NDArray[np.generic]] = {
        "user": events.user.astype(np.int32),
        "item": events.item.astype(np.int32),
        "part": np.array(PARTS)[split.part],
    }
    if events.timed.any():
        interactions["time"] = np.ma.masked_array(events.time, ~events.timed)
    return {
        "users": {
            "user_id": user_ids,
            "train_count": np.bincount(events.user[train], minlength=len(user_ids)),
        },
        "items": {
            "item_id": item_ids,
            "train_count": np.bincount(events.item[train], minlength=len(item_ids)),
        },
        "interactions": interactions,
    }


def _statistics(events: Events) -> dict[str, object]:
    users, items = len(np.unique(events.user)), len(np.unique(events.item))
    density = len(events) / (users * items) if len(events) else 0.0
    return {"users": users, "items": items, "interactions": len(events), "density": density}


def _split_statistics(
    split: Split, arrays: dict[str, NDArray[np.generic]], num_candidates: int
) -> dict[str, object]:
    counts = np.bincount(split.part, minlength=3)
    train_counts = np.bincount(
        split.events.item[split.part == TRAIN], minlength=len(arrays["item_ids"])
    )
    test = split.events.item[split.part == TEST]
    fewer = (arrays["test_candidates"] < 0).any(axis=1) & (arrays["test_items"] >= 0)
    return {
        **{name: int(count) for name, count in zip(PARTS, counts, strict=True)},
        "items_never_trained": int((train_counts == 0).sum()),
        "test_items_never_trained": int((train_counts[test] == 0).sum()),
        "num_candidates": num_candidates,
        "users_with_fewer_candidates": int(fewer.sum()),
    }


def _rules(
    protocol: str, source: Source, min_interactions: int, num_candidates: int
) -> dict[str, object]:
    paper = protocol == "paper"
    timed = source.interactions.events.timed
    threshold = source.threshold
    if source.file_order and paper:
        order = "order of the file, taken as time"
    elif timed.all():
        order = "time"
    elif timed.any():
        order = "time; missing times before known ones"
    else:
        order = "no timestamps: random, by the seed"
    if paper and not timed.all() and not source.file_order:
        order = "invented random times, by the seed"
    return {
        "positive": "every row" if threshold is None else f"rating >= {threshold:g}",
        "duplicates": "kept" if paper else "one row per (user, item), the latest",
        "min_interactions": min_interactions,
        "filter": "users, single pass; items are not filtered",
        "split": "last = test" if paper else "last = test, second last = validation",
        "order": order,
        "ties": "lowest item id last" if paper else "hash of (seed, user id, item id)",
        "candidates": f"{num_candidates} distinct items the user never interacted with",
    }


def _command(
    source: str | Path,
    target: Path,
    protocol: str,
    seed: int,
    min_interactions: int,
    options: dict[str, str | int | None],
    opened: Source,
) -> str:
    words = ["fedrecgel", "prepare", str(source), "--out", str(target)]
    words += ["--protocol", protocol, "--seed", str(seed)]
    words += ["--min-interactions", str(min_interactions)]
    for name, value in options.items():
        if value is not None:
            words += [f"--{name.replace('_', '-')}", repr(str(value))]
    if opened.threshold is not None:
        words += ["--threshold", f"{opened.threshold:g}"]
    if opened.name == SYNTHETIC:
        for name in ("users", "items", "interactions", "users_per_item", "disagreement"):
            if opened.facts[name] is not None:
                words += [f"--{name.replace('_', '-')}", str(opened.facts[name])]
    return " ".join([*words, "--overwrite"])
