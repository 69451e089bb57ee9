"""``fedrecgel difference``: test whether runs differ by more than luck."""

import argparse
from typing import Any


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "difference",
        help="test whether runs differ by more than luck",
        description="Compare finished runs on the same data user by user: mean difference to the "
        "first run, bootstrap interval, share of users changed, effect size, sign-flip test, and "
        "Holm's correction where several runs are compared.",
    )
    parser.add_argument("base", metavar="BASE", help="run that the others are compared with")
    parser.add_argument("others", metavar="RUN", nargs="+", help="made by: fedrecgel simulate")
    add_metric_options(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def add_metric_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--k`` and ``--metrics``."""
    parser.add_argument("--k", type=cutoffs, metavar="K,...", help="list lengths, e.g. 5,10,20")
    parser.add_argument(
        "--metrics",
        metavar="NAME,...",
        type=lambda text: [name.strip() for name in text.split(",")],
        help="of hr, ndcg, mrr, recall, precision, map (default: hr,ndcg)",
    )


def cutoffs(text: str) -> list[int]:
    """Parse ``5,10,20``."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers from 1, like 5,10,20")
    return list(dict.fromkeys(found))


def chosen_metrics(arguments: argparse.Namespace, default: tuple[int, ...]) -> tuple[str, ...]:
    """Names that ``--k`` and ``--metrics`` ask for, checked."""
    from fedrecgel.common.metrics import metric_names, parse_metric

    names = metric_names(arguments.k or default, arguments.metrics or ("hr", "ndcg"))
    for name in names:
        parse_metric(name)
    return names


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import print_json
    from fedrecgel.simulation.significance import compare_runs, difference_table

    names = chosen_metrics(arguments, (10,))
    report = compare_runs(arguments.base, arguments.others, names)
    if arguments.json:
        print_json(report)
    else:
        print(difference_table(report))
    return 0
