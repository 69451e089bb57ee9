"""What a prepared data set holds and by which rules it was made, in figures and words."""

import numpy as np

from fedrecgel.common.data.dataset import Arrays
from fedrecgel.common.data.sources import Source
from fedrecgel.common.data.split import PARTS, TEST, TRAIN, Events, Split


def count_events(events: Events) -> dict[str, object]:
    """Count users, items and interactions; the density is the share of pairs that interacted."""
    users, items = len(events.users), len(events.items)
    density = len(events) / (users * items) if len(events) else 0.0
    return {"users": users, "items": items, "interactions": len(events), "density": density}


def count_split(split: Split, arrays: Arrays, num_candidates: int) -> dict[str, object]:
    """Count each part, items nobody trains on, and users with too few candidates."""
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


def describe_rules(
    protocol: str, seed: int, source: Source, min_interactions: int, num_candidates: int
) -> dict[str, object]:
    """Say in words what was done, for the manifest and the report."""
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
        order = f"no timestamps: held-out items drawn at random with seed {seed}"
    if paper and not timed.all() and not source.file_order:
        order = f"invented random times, seed {seed}"
    return {
        "positive": "every row" if threshold is None else f"rating >= {threshold:g}",
        "duplicates": "kept" if paper else "one row per (user, item), the latest",
        "min_interactions": min_interactions,
        "filter": "users, single pass; items are not filtered",
        "split": "last = test" if paper else "last = test, second last = validation",
        "order": order,
        "ties": "the item that appears first in the file is the latest"
        if paper
        else "hash of (seed, user id, item id)",
        "candidates": f"{num_candidates} distinct items the user never interacted with",
    }
