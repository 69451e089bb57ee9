"""What ``prepare`` is given: a known name, ``synthetic``, or a path."""

import difflib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrecgel.common.data.download import find_known
from fedrecgel.common.data.files import source_hash
from fedrecgel.common.data.filters import active_users
from fedrecgel.common.data.known import KNOWN, KnownSet
from fedrecgel.common.data.read import Interactions, read_interactions
from fedrecgel.common.data.split import Events
from fedrecgel.common.data.synthetic import SyntheticSettings, make_synthetic
from fedrecgel.common.errors import DataError, DataWarning

SYNTHETIC = "synthetic"
_COUNTED = ("rows", "users", "items")
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """Interactions and where they are from."""

    name: str
    interactions: Interactions
    facts: dict[str, object]
    """For the manifest: file, sha256, comparison with the documented figures, licence."""
    threshold: float | None
    file_order: bool = False


def open_source(
    source: str | Path,
    options: Options,
    threshold: float | None,
    strict: bool,
    synthetic: SyntheticSettings,
    seed: int,
) -> Source:
    """Read the source; ``options`` are the column and separator settings of the user."""
    name = str(source)
    if name == SYNTHETIC:
        invented = make_synthetic(synthetic, seed)
        return Source(SYNTHETIC, invented, {"kind": SYNTHETIC, **vars(synthetic)}, None)
    if name in KNOWN:
        return _open_known(name, options, threshold, strict)
    path = Path(source)
    if not path.exists():
        known = [*KNOWN, SYNTHETIC]
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known names are {', '.join(known)}"
        raise DataError(f"no file {name!r} and no known data set of that name; {hint}")
    interactions = read_interactions(path, **options, threshold=threshold, strict=strict)
    facts: dict[str, object] = {"kind": "file", "file": path.name, "sha256": source_hash(path)}
    return Source(path.stem or path.name, interactions, facts, threshold)


def _open_known(name: str, options: Options, threshold: float | None, strict: bool) -> Source:
    known = KNOWN[name]
    if threshold is None:
        threshold = known.threshold
    elif "rating" not in known.columns:
        raise DataError(f"{name} has no ratings: a threshold cannot be used")
    path = find_known(name)
    columns = {f"{role}_column": column for role, column in known.columns.items()}
    given = {key: value for key, value in options.items() if value is not None}
    given = {**columns, **given}
    interactions = read_interactions(path, **given, threshold=threshold, strict=strict)
    facts: dict[str, object] = {
        "kind": "known",
        "file": path.name,
        "sha256": source_hash(path),
        "title": known.title,
        "page": known.page,
        "licence": known.licence,
    }
    facts["documented"] = _compare(name, known, path.name, str(facts["sha256"]), interactions)
    return Source(name, interactions, facts, threshold, known.file_order)


def _compare(
    name: str, known: KnownSet, file: str, sha256: str, interactions: Interactions
) -> dict[str, object]:
    """Compare with the documented figures; another file with other figures is a loud warning."""
    events = interactions.events
    found, expected = _count(events), dict(zip(_COUNTED, known.counts, strict=True))
    if found != expected:
        # Publishers' files may hold the users with fewer than five rows as well.
        active = active_users(events, len(interactions.user_ids), 5)
        reduced = _count(events.take(active[events.user]))
        found = reduced if reduced == expected else found
    same_file = known.sha256.get(file) == sha256
    result: dict[str, object] = {
        "same_file": same_file,
        "same_counts": found == expected,
        "found": found,
        "expected": expected,
    }
    if not same_file and found != expected:
        differences = ", ".join(
            f"{key} {found[key]:,} (documented {expected[key]:,})" for key in found
        )
        warnings.warn(
            f"this is not the documented {name}: {differences}; results cannot be compared",
            DataWarning,
            stacklevel=2,
        )
    return result


def _count(events: Events) -> dict[str, int]:
    counts = len(events), len(events.users), len(events.items)
    return dict(zip(_COUNTED, counts, strict=True))
