"""From a source of interactions to a prepared data set, each step counted."""

import shlex
from collections.abc import Mapping
from pathlib import Path

from fedrecgel.common.data.arrays import by_name
from fedrecgel.common.data.build import build
from fedrecgel.common.data.candidates import NUM_CANDIDATES
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.files import stored
from fedrecgel.common.data.known import KNOWN
from fedrecgel.common.data.manifest import Manifest, library_versions
from fedrecgel.common.data.rules import Rules, describe_rules, make_rules
from fedrecgel.common.data.sources import SYNTHETIC, Source, open_source
from fedrecgel.common.data.store import check_target, write_data_set
from fedrecgel.common.data.synthetic import SyntheticSettings
from fedrecgel.common.target import refuse_replacing


def prepare(
    source: str | Path,
    out: str | Path,
    *,
    protocol: str = "default",
    seed: int = 0,
    min_interactions: int = 5,
    min_item_interactions: int = 0,
    k_core: int | None = None,
    split: str = "leave-one-out",
    cut: str | float | None = None,
    share: float | None = None,
    ties: str = "hash",
    user_column: str | int | None = None,
    item_column: str | int | None = None,
    time_column: str | int | None = None,
    rating_column: str | int | None = None,
    separator: str | None = None,
    header: bool | None = None,
    threshold: float | None = None,
    strict: bool = False,
    num_candidates: int = NUM_CANDIDATES,
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
        ``synthetic``, a CSV, TSV, Parquet or JSON lines file, packed by gzip or zstd or not, a
        folder of such parts, or ``-`` for standard input.
    out
        The folder to make.
    protocol
        ``default``: one row per (user, item), the latest; last item test, second last validation;
        equal and missing times by a seeded rule. ``paper``: the preparation of the FedRecGEL paper:
        duplicates kept, no validation, missing times invented, ties to the lowest item id.
    seed
        Of ties, invented times, candidates and synthetic data.
    min_interactions
        Users with fewer are left out, in a single pass.
    min_item_interactions
        Items with fewer are left out, in the same pass.
    k_core
        Sets both minima to this and repeats until every user and item left has as many.
    split
        ``leave-one-out``; ``time``: all from ``cut`` on is the test, as many events before it are
        for validation; ``share``: the last ``share`` of each user's events, as many before.
    cut
        A share of the events before the cut (default 0.9), a date, or a time as in the file.
    share
        Of each user's events, below 0.5 (default 0.1).
    ties
        Which of several rows of equal time is the latest: ``hash``, a seeded rule; ``file``, the
        row that stands first, as in the preparation of PFedRec and its kin.
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
    rules = make_rules(
        protocol=protocol,
        seed=seed,
        min_interactions=min_interactions,
        min_item_interactions=min_item_interactions,
        k_core=k_core,
        num_candidates=num_candidates,
        split=split,
        cut=cut,
        share=share,
        ties=ties,
    )
    target = Path(out)
    check_target(target, overwrite=overwrite)
    if str(source) not in (SYNTHETIC, *KNOWN):
        refuse_replacing(target, Path(source))
    options = {
        "user_column": user_column,
        "item_column": item_column,
        "time_column": time_column,
        "rating_column": rating_column,
        "separator": separator,
        "header": header,
    }
    synthetic = SyntheticSettings(users, items, interactions, users_per_item, disagreement)
    with stored(source) as path:
        opened = open_source(path, options, threshold, strict, synthetic, seed)
        built = build(opened, rules)
    manifest = Manifest(
        name=opened.name,
        protocol=protocol,
        seed=seed,
        split=split,
        command=_command(opened, source, target, rules, options),
        source={**opened.facts, "threshold": opened.threshold},
        rules=describe_rules(rules, opened, built.report["cut"]),
        statistics=built.statistics,
        report=built.report,
        versions=library_versions(),
    )
    write_data_set(target, manifest, by_name(built.arrays), built.tables, overwrite=overwrite)
    return Dataset.load(target)


def _command(
    opened: Source,
    source: str | Path,
    target: Path,
    rules: Rules,
    options: Mapping[str, object],
) -> str:
    """Return the command that makes the same data set again."""
    words = ["fedrecgel", "prepare", str(source), "--out", str(target)]
    settings: dict[str, object] = {
        "protocol": rules.protocol,
        "seed": rules.seed,
        "num_candidates": rules.num_candidates,
        **options,
        "threshold": opened.threshold,
    }
    if rules.minimum.repeat:
        settings["k_core"] = rules.minimum.user
    else:
        settings["min_interactions"] = rules.minimum.user
        settings["min_item_interactions"] = rules.minimum.item or None
    if rules.ties != "hash":
        settings["ties"] = rules.ties
    if rules.split != "leave-one-out":
        settings["split"] = rules.split
        settings |= {"cut": rules.cut} if rules.split == "time" else {"share": rules.share}
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
