"""Filter, order, split and draw candidates: from good rows to the arrays of a data set."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.candidates import draw_candidates
from fedrecgel.common.data.dataset import Arrays
from fedrecgel.common.data.sources import Source
from fedrecgel.common.data.split import (
    TEST,
    TRAIN,
    VALIDATION,
    Events,
    Split,
    active_users,
    earliest_item_last,
    hashed_ties,
    latest_per_pair,
    leave_one_out,
)
from fedrecgel.common.data.summary import count_events, count_split
from fedrecgel.common.errors import DataError
from fedrecgel.common.hashing import Keys, integers, mix, user_keys


@dataclass(frozen=True)
class Built:
    """Everything that is written, but the manifest's head."""

    arrays: Arrays
    tables: dict[str, dict[str, NDArray[np.generic]]]
    statistics: dict[str, dict[str, object]]
    report: dict[str, object]


def build(
    source: Source, protocol: str, seed: int, min_interactions: int, num_candidates: int
) -> Built:
    """Prepare the rows of a source; see ``prepare`` for the meaning of the settings."""
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
    user_ids, item_ids = raw.user_ids[kept.users], raw.item_ids[kept.items]
    kept = kept.renumbered()
    keys = user_keys(str(i) for i in user_ids)
    ties = (
        earliest_item_last(kept)
        if paper
        else hashed_ties(seed, kept, keys, user_keys(str(i) for i in item_ids))
    )
    split = leave_one_out(kept, ties, validation=not paper)
    arrays = _arrays(split, user_ids, item_ids, keys, seed, num_candidates)
    below = len(single.users) - len(user_ids)
    report = {
        **raw.report,
        "duplicates_merged": len(events) - len(single),
        "users_below_minimum": below,
        "rows_below_minimum": len(single) - len(kept),
        "rows_kept": len(kept),
        "users_with_ties": split.tied_users,
    }
    statistics = {
        "raw": count_events(raw.events),
        "filtered": count_events(kept),
        "split": count_split(split, arrays, num_candidates),
    }
    return Built(arrays, _tables(split, arrays), statistics, report)


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
) -> Arrays:
    events, part = split.events, split.part
    train = part == TRAIN
    counts = np.bincount(events.user[train], minlength=len(user_ids))
    held_out, drawn = [], []
    for name, value in (("validation", VALIDATION), ("test", TEST)):
        chosen = np.full(len(user_ids), -1, dtype=np.int32)
        chosen[events.user[part == value]] = events.item[part == value]
        candidates = np.full((len(user_ids), num_candidates), -1, dtype=np.int32)
        if (chosen >= 0).any():
            candidates = draw_candidates(
                seed, name, keys, events.user, events.item, len(item_ids), num_candidates
            )
            candidates[chosen < 0] = -1
        held_out.append(chosen)
        drawn.append(candidates)
    return {
        "user_ids": user_ids,
        "item_ids": item_ids,
        "train_items": events.item[train].astype(np.int32),
        "train_offsets": np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        "validation_items": held_out[0],
        "test_items": held_out[1],
        "validation_candidates": drawn[0],
        "test_candidates": drawn[1],
    }


def _tables(split: Split, arrays: Arrays) -> dict[str, dict[str, NDArray[np.generic]]]:
    events = split.events
    train = split.part == TRAIN
    user_ids, item_ids = arrays["user_ids"], arrays["item_ids"]
    interactions: dict[str, NDArray[np.generic]] = {
        "user": events.user.astype(np.int32),
        "item": events.item.astype(np.int32),
        "part": split.part,
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
