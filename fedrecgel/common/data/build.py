"""Filter, order, split and draw candidates: from good rows to the arrays of a data set."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.arrays import Arrays, arrange
from fedrecgel.common.data.cut import find_cut
from fedrecgel.common.data.filters import keep_minimum
from fedrecgel.common.data.leakage import measure_leakage
from fedrecgel.common.data.read import Interactions
from fedrecgel.common.data.rules import Rules
from fedrecgel.common.data.sources import Source
from fedrecgel.common.data.split import (
    TRAIN,
    Events,
    Split,
    chronological,
    earliest_item_last,
    earliest_row_last,
    from_moment,
    hashed_ties,
    last_share,
    leave_one_out,
    one_per_pair,
)
from fedrecgel.common.data.summary import count_events, count_split
from fedrecgel.common.errors import DataError
from fedrecgel.common.hashing import integers, mix, user_keys

Column = NDArray[np.generic]


@dataclass(frozen=True)
class Built:
    """Everything that is written, but the manifest's head."""

    arrays: Arrays
    tables: dict[str, dict[str, Column]]
    statistics: dict[str, dict[str, object]]
    report: dict[str, object]


def build(source: Source, rules: Rules, *, whole_catalogue: bool = False) -> Built:
    """Prepare the rows of a source; see ``prepare`` for the meaning of the rules.

    The items of the result are those that occur, or with ``whole_catalogue`` all of the source.
    """
    raw = source.interactions
    events = _paper_times(source, rules.seed) if rules.paper else raw.events
    single = events
    if not rules.paper:
        single = one_per_pair(events, latest=rules.split != "time")
    filtered = keep_minimum(single, rules.minimum)
    if not len(filtered.events):
        raise DataError(f"{source.name}: {rules.nobody_left()}")
    split, cut = _split(source, rules, filtered.events)
    warm = _without_cold_users(split, source)
    user_ids, item_ids = raw.user_ids[warm.events.users], raw.item_ids
    if not whole_catalogue:
        item_ids = item_ids[warm.events.items]
    kept = warm.renumbered(items=not whole_catalogue)
    arrays = arrange(
        user_ids,
        item_ids,
        user_keys(user_ids.tolist()),
        kept.events.user,
        kept.events.item,
        kept.part,
        rules.seed,
        rules.num_candidates,
        several=rules.split != "leave-one-out",
    )
    report = {
        **raw.report,
        "duplicates_merged": len(events) - len(single),
        "users_below_minimum": filtered.users,
        "items_below_minimum": filtered.items,
        "filter_rounds": filtered.rounds,
        "rows_below_minimum": len(single) - len(filtered.events),
        "rows_of_cold_users": len(filtered.events) - len(kept.events),
        "rows_kept": len(kept.events),
        "users_with_ties": kept.tied_users,
        "leakage": _leakage(rules, source, split),
        "cut": cut,
    }
    statistics = {
        "raw": count_events(raw.events),
        "filtered": count_events(filtered.events),
        "split": {
            **count_split(kept, arrays, rules.num_candidates),
            "cold_users": len(filtered.events.users) - len(user_ids),
        },
    }
    return Built(arrays, _tables(kept, arrays), statistics, report)


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


def hashed_order(raw: Interactions, events: Events, seed: int) -> Events:
    """Sort by user and time; equal times by a hash of (seed, user id, item id)."""
    users, items = user_keys(raw.user_ids.tolist()), user_keys(raw.item_ids.tolist())
    return chronological(events, hashed_ties(seed, events, users, items))


def _split(source: Source, rules: Rules, events: Events) -> tuple[Split, dict[str, object] | None]:
    """Order the events by the rule of ties and split them."""
    raw = source.interactions
    if rules.paper:
        ordered = chronological(events, earliest_item_last(events))
    elif rules.ties == "file":
        ordered = chronological(events, earliest_row_last(raw.events, events))
    else:
        ordered = hashed_order(raw, events, rules.seed)
    if rules.split == "share":
        return last_share(ordered, rules.share), None
    if rules.split == "time":
        cut, facts = find_cut(ordered, rules.cut, raw.report.get("times"), source.name)
        return from_moment(ordered, cut), facts
    return leave_one_out(ordered, validation=not rules.paper), None


def _without_cold_users(split: Split, source: Source) -> Split:
    """Leave out users without train events: no device has anything to learn from."""
    trained = np.bincount(split.events.user[split.part == TRAIN], minlength=1) > 0
    if not trained.any():
        raise DataError(f"{source.name}: the split leaves nothing to train on; choose another")
    users = split.events.user
    warm = trained[np.minimum(users, len(trained) - 1)] & (users < len(trained))
    return split if warm.all() else split.take(warm)


def _leakage(rules: Rules, source: Source, split: Split) -> dict[str, object] | None:
    """Measure the future in training: under this split, and under leave-one-out beside it."""
    if source.file_order or not source.interactions.events.timed.any():
        return None
    own = measure_leakage(split)
    if rules.split == "leave-one-out":
        return {"leave-one-out": own}
    return {rules.split: own, "leave-one-out": measure_leakage(leave_one_out(split.events))}


def _tables(split: Split, arrays: Arrays) -> dict[str, dict[str, Column]]:
    events = split.events
    train = split.part == TRAIN
    user_ids, item_ids = arrays["user_ids"], arrays["item_ids"]
    interactions: dict[str, Column] = {
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
