"""``fedrecgel evaluate``: measure a run's model again."""

import argparse
from typing import Any

from fedrecgel.cli.difference import add_metric_options, chosen_metrics


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
    add_metric_options(parser)
    parser.add_argument(
        "--private",
        default="kept",
        choices=("kept", "fitted"),
        help="private parameters as the run left them (default), or after local rounds against the "
        "final shared ones",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import print_json
    from fedrecgel.simulation.report import NAMES
    from fedrecgel.simulation.result import Result
    from fedrecgel.simulation.table import table

    asked = arguments.k or arguments.metrics
    names = chosen_metrics(arguments, (5, 10, 20)) if asked else None
    report = Result.open(arguments.run_folder).evaluate(
        arguments.split, names=names or NAMES, fitted=arguments.private == "fitted"
    )
    if arguments.json:
        print_json(report)
    else:
        print(table(report, names))
    return 0
