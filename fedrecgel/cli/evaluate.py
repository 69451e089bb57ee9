"""``fedrecgel evaluate``: measure a run's model again."""

import argparse
from typing import Any


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "evaluate",
        help="measure the model of a run again",
        description="Measure the model of a run again, from its files.",
    )
    parser.add_argument(
        "--run", required=True, dest="run_folder", metavar="RUN", help="made by: fedrecgel simulate"
    )
    parser.add_argument(
        "--split", default="test", choices=("validation", "test"), help="default: test"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import print_json
    from fedrecgel.simulation.result import Result
    from fedrecgel.simulation.table import table

    report = Result.open(arguments.run_folder).evaluate(arguments.split)
    if arguments.json:
        print_json(report)
    else:
        print(table(report))
    return 0
