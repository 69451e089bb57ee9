"""``fedrecgel recommend``: the best items for a user of a run, or for somebody new."""

import argparse
from pathlib import Path
from typing import Any

from fedrecgel.common.errors import ConfigError


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "recommend",
        help="list the best items for a user",
        description="List the best items for a user of a run, or for a new user with a file of "
        "interactions, whose private vector is fitted here and kept nowhere.",
    )
    parser.add_argument(
        "--run", required=True, dest="run_folder", metavar="RUN", help="made by: fedrecgel simulate"
    )
    parser.add_argument("--user", metavar="ID", help="user of the data set")
    parser.add_argument(
        "--file",
        metavar="FILE",
        type=Path,
        help="items of a new user: one id a line, or a table with an item column",
    )
    parser.add_argument("--k", type=int, default=10, help="how many items (default: 10)")
    parser.add_argument("--repeat", action="store_true", help="also items the user knows already")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import print_json
    from fedrecgel.simulation.new_user import items_of_file
    from fedrecgel.simulation.result import Result

    if (arguments.user is None) == (arguments.file is None):
        raise ConfigError("give --user ID for a user of the run, or --file FILE for a new one")
    if arguments.k < 1:
        raise ConfigError(f"--k must be at least 1, not {arguments.k}")
    result = Result.open(arguments.run_folder)
    if arguments.user is not None:
        found = result.recommend(arguments.user, arguments.k, repeat=arguments.repeat)
    else:
        found = result.recommend_new(items_of_file(arguments.file), arguments.k)
    if arguments.json:
        print_json([vars(item) for item in found])
    else:
        for place, item in enumerate(found, 1):
            print(f"{place:>3}  {item.item:<24} {item.score:8.3f}")
    return 0
