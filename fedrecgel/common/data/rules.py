"""The settings of a preparation: checked together, and said in words."""

from dataclasses import dataclass, field

from fedrecgel.common.data.candidates import NUM_CANDIDATES
from fedrecgel.common.data.filters import Minimum
from fedrecgel.common.data.sources import Source
from fedrecgel.common.data.split import SPLITS
from fedrecgel.common.errors import ConfigError

PROTOCOLS = ("default", "paper")
TIES = {
    "hash": "hash of (seed, user id, item id)",
    "file": "the row that stands first in the file is the latest",
}
"""Rules for equal times under protocol default."""
DEFAULT_CUT = "0.9"
DEFAULT_SHARE = 0.1
DEFAULT_MINIMUM = 5
"""Interactions that a user needs, unless the caller says otherwise."""


@dataclass(frozen=True)
class Rules:
    """How interactions are filtered, split and given candidates; meanings stand at ``prepare``."""

    protocol: str = "default"
    seed: int = 0
    minimum: Minimum = field(default_factory=Minimum)
    num_candidates: int = NUM_CANDIDATES
    split: str = "leave-one-out"
    cut: str = DEFAULT_CUT
    share: float = DEFAULT_SHARE
    ties: str = "hash"

    @property
    def paper(self) -> bool:
        return self.protocol == "paper"

    def nobody_left(self) -> str:
        """Say that the filter left nothing, and what to do."""
        least = self.minimum
        if least.repeat:
            return f"no {least.user}-core: nothing is left; lower --k-core"
        if least.item > 1:
            return (
                f"no user with {least.user} interactions and item with {least.item} is left; lower"
                " --min-interactions or --min-item-interactions"
            )
        return f"no user has {least.user} interactions; lower --min-interactions"


def make_rules(
    *,
    protocol: str,
    seed: int,
    min_interactions: int,
    min_item_interactions: int,
    k_core: int | None,
    num_candidates: int,
    split: str,
    cut: str | float | None,
    share: float | None,
    ties: str,
) -> Rules:
    """Check the settings a user gave."""
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol {protocol!r} is unknown; it is one of {', '.join(PROTOCOLS)}")
    if split not in SPLITS:
        raise ConfigError(f"split {split!r} is unknown; it is one of {', '.join(SPLITS)}")
    if ties not in TIES:
        raise ConfigError(f"ties {ties!r} is unknown; it is one of {', '.join(TIES)}")
    if protocol == "paper" and ties != "hash":
        raise ConfigError("protocol paper has a rule of its own for ties; leave --ties out")
    if protocol == "paper" and split != "leave-one-out":
        raise ConfigError(f"protocol paper is leave-one-out; --split {split} needs the default one")
    for name, value in (
        ("min-interactions", min_interactions),
        ("min-item-interactions", min_item_interactions),
    ):
        if value < 0:
            raise ConfigError(f"{name} is {value}; it must be 0 or more")
    if num_candidates < 1:
        raise ConfigError(f"num-candidates is {num_candidates}; it must be 1 or more")
    if cut is not None and split != "time":
        raise ConfigError("a cut belongs to --split time")
    if share is not None and split != "share":
        raise ConfigError("a share belongs to --split share")
    if share is not None and not 0 < share < 0.5:
        raise ConfigError(f"share is {share}; it must be above 0 and below 0.5")
    minimum = Minimum(min_interactions, min_item_interactions)
    if k_core is not None:
        if k_core < 1:
            raise ConfigError(f"k-core is {k_core}; it must be 1 or more")
        others = ((min_interactions, DEFAULT_MINIMUM), (min_item_interactions, 0))
        if any(given not in (default, k_core) for given, default in others):
            raise ConfigError("k-core sets the minimum of users and items; give only one of them")
        minimum = Minimum(k_core, k_core, repeat=True)
    return Rules(
        protocol,
        seed,
        minimum,
        num_candidates,
        split,
        DEFAULT_CUT if cut is None else str(cut),
        DEFAULT_SHARE if share is None else share,
        ties,
    )


def describe_rules(rules: Rules, source: Source, cut: object) -> dict[str, object]:
    """Say in words what was done, for the manifest and the report."""
    threshold, kept = source.threshold, "earliest" if rules.split == "time" else "latest"
    return {
        "positive": "every row" if threshold is None else f"rating >= {threshold:g}",
        "duplicates": "kept" if rules.paper else f"one row per (user, item), the {kept}",
        "min_interactions": rules.minimum.user,
        "min_item_interactions": rules.minimum.item,
        "filter": rules.minimum.words(),
        "split": _split_words(rules, cut),
        "order": _order_words(rules, source),
        "ties": "the item that appears first in the file is the latest"
        if rules.paper
        else TIES[rules.ties],
        "candidates": f"{rules.num_candidates} distinct items the user never interacted with",
    }


def _split_words(rules: Rules, cut: object) -> str:
    if rules.split == "time":
        words = cut.get("words") if isinstance(cut, dict) else rules.cut
        return f"all from {words} on = test, as many before = validation"
    if rules.split == "share":
        share = f"{100 * rules.share:g} %"
        return f"last {share} of each user, at least one = test, as many before = validation"
    return "last = test" if rules.paper else "last = test, second last = validation"


def _order_words(rules: Rules, source: Source) -> str:
    timed = source.interactions.events.timed
    if source.file_order and rules.paper:
        return "order of the file, taken as time"
    if rules.paper and not timed.all():
        return f"invented random times, seed {rules.seed}"
    if timed.all():
        return "time"
    if timed.any():
        return "time; missing times before known ones"
    return f"no timestamps: held-out items drawn at random with seed {rules.seed}"
