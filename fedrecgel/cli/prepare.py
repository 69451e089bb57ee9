"""``fedrecgel prepare``: from a file of interactions to a prepared data set."""

import argparse
import inspect
import sys
import warnings
from typing import Any

from fedrecgel.common.errors import DataWarning


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = subparsers.add_parser(
        "prepare",
        help="make a data set from a file of interactions",
        description="Read interactions, clean, split and write them to a folder.",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="filmtrust, lastfm-2k, amazon-video, qb-article, ml-100k, ml-1m, synthetic, or the"
        " path of a CSV, TSV, Parquet or JSON lines file (also .gz, .zst), of a folder of such"
        " parts, or - for standard input",
    )
    parser.add_argument("--out", required=True, metavar="DIR", help="the folder to make")
    parser.add_argument("--overwrite", action="store_true", help="replace the data set in DIR")
    parser.add_argument("--protocol", default="default", help="default or paper")
    parser.add_argument("--seed", type=int, default=0, help="of ties, candidates, invented data")
    parser.add_argument("--num-candidates", type=int, default=99, metavar="N")
    parser.add_argument("--json", action="store_true", help="print the manifest as JSON")
    _add_filter_options(parser)
    _add_split_options(parser)
    add_file_options(parser)
    _add_synthetic_options(parser)
    parser.set_defaults(run=run)


def _add_filter_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("filter")
    group.add_argument(
        "--min-interactions", type=int, default=5, metavar="N", help="of a user (default 5)"
    )
    group.add_argument(
        "--min-item-interactions", type=int, default=0, metavar="N", help="of an item (default 0)"
    )
    group.add_argument(
        "--k-core", type=int, metavar="K", help="both at least K, repeated until it holds for all"
    )


def _add_split_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("split", "which interactions are for validation and test")
    group.add_argument(
        "--split",
        default="leave-one-out",
        metavar="KIND",
        help="leave-one-out (default), time (all from --cut on) or share (the last of each user)",
    )
    group.add_argument(
        "--cut",
        help="of --split time: share of the events before it (default 0.9), a date, or a time of"
        " the file",
    )
    group.add_argument(
        "--ties",
        default="hash",
        metavar="RULE",
        help="which of several rows of equal time is the latest: by hash (default), or the one"
        " that stands first in the file",
    )
    group.add_argument(
        "--share", type=float, help="of --split share: of each user's events (default 0.1)"
    )


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add what says how a file is to be read."""
    group = parser.add_argument_group("files", "what is not given is guessed and printed")
    for role in ("user", "item", "time", "rating"):
        group.add_argument(
            f"--{role}-column", metavar="COLUMN", help="name, position from 1, or none"
        )
    group.add_argument(
        "--separator", help="comma, tab, semicolon, pipe, blanks, :: or any other character"
    )
    group.add_argument(
        "--header", action=argparse.BooleanOptionalAction, help="whether line 1 names the columns"
    )
    group.add_argument(
        "--threshold", type=float, help="only ratings of at least this are interactions"
    )
    group.add_argument("--strict", action="store_true", help="stop at the first bad row")


def _add_synthetic_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("synthetic")
    group.add_argument("--users", type=_whole, default=1_000, help="number of users, also 1e5")
    group.add_argument("--items", type=_whole, help="number of items")
    group.add_argument("--interactions", type=float, help="mean number per user")
    group.add_argument("--users-per-item", type=float, help="mean number of users of an item")
    group.add_argument(
        "--disagreement", type=float, default=0.5, help="how much tastes differ, 0 to 1"
    )


def _whole(text: str) -> int:
    value = float(text)
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text} is not a whole number")
    return int(value)


def run(args: argparse.Namespace) -> int:
    """Prepare and print the report."""
    from fedrecgel.common.data.prepare import prepare
    from fedrecgel.common.data.text_report import format_report

    settings = {name: getattr(args, name) for name in inspect.signature(prepare).parameters}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        data = prepare(**settings)
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    print(data.manifest.to_json() if args.json else format_report(data.manifest, args.out))
    return 0
