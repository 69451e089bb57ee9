"""What a prepared data set holds, in figures."""

import numpy as np

from fedrecgel.common.data.arrays import Arrays
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
        "users_with_validation": int((arrays["validation_items"] >= 0).sum()),
        "users_with_test": int((arrays["test_items"] >= 0).sum()),
        "items_never_trained": int((train_counts == 0).sum()),
        "test_items_never_trained": int((train_counts[test] == 0).sum()),
        "num_candidates": num_candidates,
        "users_with_fewer_candidates": int(fewer.sum()),
    }
