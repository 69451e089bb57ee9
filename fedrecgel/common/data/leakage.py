"""How much of the future a split trains on (Ji, Sun et al., TOIS 2023, arXiv 2010.11060)."""

from collections.abc import Mapping

import numpy as np

from fedrecgel.common.data.split import TEST, TRAIN, Split


def measure_leakage(split: Split) -> dict[str, object] | None:
    """Measure, over test events with a time, what they could not have known; None without times.

    Returns
    -------
    dict
        ``test_events`` counted; ``leaked`` of these, with a train event of another user after them,
        and its ``share``; ``train_after``, the mean share of the train events that lie after a test
        event; ``items_after``, the mean share of the items that nobody had touched by then.
    """
    events = split.events
    test = np.sort(events.time[(split.part == TEST) & events.timed])
    is_train = (split.part == TRAIN) & events.timed
    if not len(test) or not is_train.any():
        return None
    train = np.sort(events.time[is_train])
    later = len(train) - np.searchsorted(train, test, side="right")
    # Under every split a user's own train events are not later than their test events.
    leaked = int((later > 0).sum())
    first = np.full(int(events.item.max()) + 1, np.inf)
    np.minimum.at(first, events.item[events.timed], events.time[events.timed])
    seen = np.sort(first[np.isfinite(first)])
    unseen = len(seen) - np.searchsorted(seen, test, side="right")
    return {
        "test_events": len(test),
        "leaked": leaked,
        "share": leaked / len(test),
        "train_after": float(later.mean() / len(train)),
        "items_after": float(unseen.mean() / len(seen)),
    }


def describe_leakage(name: str, leakage: Mapping[str, object]) -> str:
    """Say it in a line."""
    share, after = float(str(leakage["share"])), float(str(leakage["train_after"]))
    items = float(str(leakage["items_after"]))
    return (
        f"{name}: {share:.1%} of the test events have train events of others after them; on average"
        f" {after:.1%} of the train events and {items:.1%} of the items come later than the test"
        " event"
    )
