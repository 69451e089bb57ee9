"""``fedrecgel data``: look at files of interactions."""

import argparse
import sys
import warnings
from pathlib import Path
from typing import Any

from fedrecgel.cli.prepare import add_file_options
from fedrecgel.common.errors import DataWarning

_OPTIONS = ("user_column", "item_column", "time_column", "rating_column", "separator", "header")


def add_parser(subparsers: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command and its subcommands."""
    parser = subparsers.add_parser("data", help="inspect files of interactions")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    inspect = commands.add_parser(
        "inspect",
        help="say what is in a file and what is odd about it",
        description="Read interactions as prepare would, and describe them; nothing is changed.",
    )
    inspect.add_argument("source", metavar="FILE", help="what prepare takes; - for standard input")
    inspect.add_argument("--json", action="store_true", help="print everything as JSON")
    inspect.add_argument("--picture", metavar="FILE.png", help="also draw it")
    inspect.add_argument("--num-candidates", type=int, default=99, metavar="N")
    add_file_options(inspect)
    inspect.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Inspect and print."""
    from fedrecgel.cli import print_json
    from fedrecgel.common.data.inspect import inspect
    from fedrecgel.common.data.inspect_report import format_inspection

    options = {name: getattr(args, name) for name in _OPTIONS}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        found = inspect(
            args.source,
            options,
            threshold=args.threshold,
            num_candidates=args.num_candidates,
            strict=args.strict,
        )
    for warning in caught:
        print(f"warning: {warning.message}", file=sys.stderr)
    if args.picture:
        from fedrecgel.common.data.picture import draw

        draw(found, Path(args.picture))
    if args.json:
        print_json(found.report)
    else:
        print(format_inspection(found.report))
    return 0
