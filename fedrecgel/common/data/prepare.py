"""From a source of interactions to a prepared data set, each step counted."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from fedrecgel.common.data.build import build
from fedrecgel.common.data.dataset import Dataset, by_name
from fedrecgel.common.data.manifest import Manifest, library_versions
from fedrecgel.common.data.sources import SYNTHETIC, Source, open_source
from fedrecgel.common.data.store import check_target, write_data_set
from fedrecgel.common.data.summary import describe_rules
from fedrecgel.common.data.synthetic import SyntheticSettings
from fedrecgel.common.errors import ConfigError

PROTOCOLS = ("default", "paper")


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
    header: bool | None = None,
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
        A known name (filmtrust, lastfm-2k, amazon-video, qb-article, ml-100k, ml-1m),
        ``synthetic``, or a CSV, TSV or Parquet file or a folder of such parts.
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
    user_column, item_column, time_column, rating_column, separator, header, threshold, strict
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
        "header": header,
    }
    synthetic = SyntheticSettings(users, items, interactions, users_per_item, disagreement)
    numbers = {
        "seed": seed,
        "min_interactions": min_interactions,
        "num_candidates": num_candidates,
    }
    opened = open_source(source, options, threshold, strict, synthetic, seed)
    built = build(opened, protocol, seed, min_interactions, num_candidates)
    manifest = Manifest(
        name=opened.name,
        protocol=protocol,
        seed=seed,
        command=_command(opened, source, target, protocol, options, numbers),
        source=opened.facts,
        rules=describe_rules(protocol, seed, opened, min_interactions, num_candidates),
        statistics=built.statistics,
        report=built.report,
        versions=library_versions(),
    )
    write_data_set(target, manifest, by_name(built.arrays), built.tables, overwrite=overwrite)
    return Dataset.load(target)


def _check(protocol: str, min_interactions: int, num_candidates: int) -> None:
    if protocol not in PROTOCOLS:
        raise ConfigError(f"protocol {protocol!r} is unknown; it is one of {', '.join(PROTOCOLS)}")
    if min_interactions < 0:
        raise ConfigError(f"min-interactions is {min_interactions}; it must be 0 or more")
    if num_candidates < 1:
        raise ConfigError(f"num-candidates is {num_candidates}; it must be 1 or more")


def _command(
    opened: Source,
    source: str | Path,
    target: Path,
    protocol: str,
    options: Mapping[str, object],
    numbers: Mapping[str, int],
) -> str:
    """Return the command that makes the same data set again."""
    words = ["fedrecgel", "prepare", str(source), "--out", str(target), "--protocol", protocol]
    settings: dict[str, object] = {**numbers, **options, "threshold": opened.threshold}
    if opened.name == SYNTHETIC:
        names = ("users", "items", "interactions", "users_per_item", "disagreement")
        settings |= {name: opened.facts[name] for name in names}
    for name, value in settings.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{flag}" if value else f"--no-{flag}")
        elif value is not None:
            words += [f"--{flag}", str(value)]
    return shlex.join([*words, "--overwrite"])
