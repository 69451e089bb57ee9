"""``fedrecgel compare``: several algorithms, one fair table."""

import argparse
import shlex
import sys
from typing import Any

from fedrecgel.cli.simulate import parse_settings
from fedrecgel.common.algorithms.registry import ALGORITHMS


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "compare",
        help="tune algorithms at an equal budget, repeat over seeds, print one table",
        description="Compare algorithms on prepared data sets: each tries the same number of "
        "settings on the validation items, then trains once for each seed and is tested once each. "
        "What is finished is kept in OUT, so the same command goes on where it stopped, and a "
        "command with more algorithms, data sets or seeds adds what is new.",
    )
    parser.add_argument(
        "--data", required=True, type=_names, metavar="DIR,...", help="made by: fedrecgel prepare"
    )
    parser.add_argument("--out", required=True, metavar="OUT", help="folder of the tables")
    parser.add_argument(
        "--algorithms",
        type=_names,
        default=["all"],
        metavar="NAME,...",
        help=f"all, or of {', '.join(ALGORITHMS)}; NAME:paper starts from that preset "
        "(default: all)",
    )
    parser.add_argument(
        "--references",
        type=_names,
        default=None,
        metavar="NAME,...",
        help="central methods beside them, or none; popularity is always there (default: all)",
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="S", help="so many (default: 5)")
    parser.add_argument(
        "--budget",
        type=int,
        default=8,
        metavar="B",
        help="trials of each algorithm on validation; 1 = nothing is tuned (default: 8)",
    )
    parser.add_argument(
        "--trial-rounds", type=int, default=0, metavar="R", help="of a trial (default: all rounds)"
    )
    parser.add_argument("--rounds", type=int, help="same as --set rounds=... (default: 150)")
    parser.add_argument("--dtype", help="same as --set dtype=...")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting for every algorithm that knows it, or ALGORITHM.NAME=VALUE for one",
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes beside each other (default: the machine's cores); 0 only writes the table "
        "of what is there",
    )
    parser.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="processor time; a run that would take more is marked infeasible, with the estimate",
    )
    parser.add_argument(
        "--log",
        default="auto",
        choices=("auto", "bar", "text", "json", "none"),
        help="what to show on stderr: auto is a bar on a terminal, else a line for each run",
    )
    parser.add_argument("--json", action="store_true", help="print comparison.json")
    parser.set_defaults(run=run, seed=None, told=None)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("name at least one")
    return names


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import INTERRUPTED, print_json
    from fedrecgel.simulation.compare.study import compare

    references = [] if arguments.references == ["none"] else arguments.references
    try:
        comparison = compare(
            arguments.data,
            arguments.out,
            algorithms=arguments.algorithms,
            references=references,
            seeds=arguments.seeds,
            budget=arguments.budget,
            trial_rounds=arguments.trial_rounds,
            workers=arguments.workers,
            time_limit=arguments.time_limit,
            log=arguments.log,
            command=command_line(arguments),
            **parse_settings(arguments),
        )
    except KeyboardInterrupt:
        print(
            f"stopped; {arguments.out} keeps what is finished, and the same command goes on",
            file=sys.stderr,
        )
        return INTERRUPTED
    if arguments.json:
        print_json(comparison.values)
    else:
        print(comparison.table())
        print(f"tables and pictures: {arguments.out}/comparison.* accuracy.png curves.png")
    return 0


def command_line(arguments: argparse.Namespace) -> str:
    """The command that gives the same table, without what cannot change it."""
    words = ["fedrecgel", "compare", "--data", ",".join(arguments.data)]
    words += ["--algorithms", ",".join(arguments.algorithms)]
    if arguments.references is not None:
        words += ["--references", ",".join(arguments.references)]
    words += ["--seeds", str(arguments.seeds), "--budget", str(arguments.budget)]
    for option in ("trial_rounds", "rounds", "dtype", "time_limit"):
        value = getattr(arguments, option)
        if value:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            words += [f"--{option.replace('_', '-')}", text]
    for setting in arguments.set:
        words += ["--set", setting]
    return shlex.join([*words, "--out", arguments.out])
