"""``fedrecgel demo``: the whole way once, from data to ten recommendations."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrecgel.common.errors import DataError


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="the whole way once, in a minute or two",
        description="Prepare FilmTrust (made data if it cannot be had), train, and recommend.",
    )
    parser.add_argument("--out", default="demo", type=Path, metavar="DIR", help="default: demo")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import print_json
    from fedrecgel.simulation.run import simulate

    def say(text: str) -> None:
        print(text, file=sys.stderr if arguments.json else sys.stdout, flush=True)

    data = _prepare(arguments.out / "data", say)
    say(
        f"{data.name}: {data.num_users:,} users, {data.num_items:,} items, "
        f"{data.num_train:,} interactions to train on"
    )
    say("training: every user is a client that keeps its own vector and sends only gradients\n")
    result = simulate(
        data,
        arguments.out / "run",
        nodes=min(8, data.num_users),
        overwrite=True,
        log="bar" if sys.stderr.isatty() else "none",
    )
    user = str(data.user_ids[0])
    listed = result.recommend(user)
    if arguments.json:
        print_json({**result.values, "recommendations": [vars(item) for item in listed]})
        return 0
    print(result.table())
    print(
        f"\nten recommendations for user {user}, "
        f"who has interacted with {len(data.train_of(0))} items so far:"
    )
    for place, item in enumerate(listed, 1):
        print(f"{place:>3}  item {item.item:<12} score {item.score:7.3f}")
    print(f"\npicture: {result.path / 'curves.png'}")
    print(f"again:   fedrecgel recommend --run {result.path} --user {user}")
    return 0


def _prepare(out: Path, say: Callable[[str], None]) -> Any:  # noqa: ANN401 - a Dataset, imported late
    from fedrecgel.common.data.prepare import prepare

    try:
        return prepare("filmtrust", out, overwrite=True)
    except DataError as error:
        say(f"FilmTrust cannot be had here ({error}).\nThe demo goes on with made data.\n")
        return prepare("synthetic", out, users=1_000, overwrite=True)
