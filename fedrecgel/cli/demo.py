"""``fedrecgel demo``: the whole way once, from data to ten recommendations."""

import argparse
from pathlib import Path
from typing import Any

from fedrecgel.common.errors import DataError


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "demo",
        help="the whole way once, in about a minute",
        description="Prepare FilmTrust (made data if it cannot be had), train, and recommend.",
    )
    parser.add_argument("--out", default="demo", type=Path, metavar="DIR", help="default: demo")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.simulation.run import simulate

    data = _prepare(arguments.out / "data")
    print(
        f"{data.name}: {data.num_users:,} users, {data.num_items:,} items, "
        f"{data.num_train:,} interactions to train on"
    )
    print("training: every user is a client that keeps its own vector and sends only gradients\n")
    result = simulate(data, arguments.out / "run", nodes=min(8, data.num_users), overwrite=True)
    print(result.table())
    user = str(data.user_ids[0])
    print(
        f"\nten recommendations for user {user}, "
        f"who has interacted with {len(data.train_of(0))} items so far:"
    )
    for place, item in enumerate(result.recommend(user), 1):
        print(f"{place:>3}  item {item.item:<12} score {item.score:7.3f}")
    print(f"\npicture: {result.path / 'curves.png'}")
    print(f"again:   fedrecgel recommend --run {result.path} --user {user}")
    return 0


def _prepare(out: Path) -> Any:  # noqa: ANN401 - Dataset, imported late so that --help is quick
    from fedrecgel.common.data.prepare import prepare

    try:
        return prepare("filmtrust", out, overwrite=True)
    except DataError as error:
        print(f"FilmTrust cannot be had here ({error}).\nThe demo goes on with made data.\n")
        return prepare("synthetic", out, users=1_000, overwrite=True)
