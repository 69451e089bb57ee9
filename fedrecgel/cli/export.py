"""``fedrecgel export``: one user's own model, to take along."""

import argparse
from pathlib import Path
from typing import Any

from fedrecgel.client.state_folder import state_folders
from fedrecgel.common.target import check_file, refuse_inside


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "export",
        help="write one user's own model to a file",
        description="Write what one user's device would hold to a file: private tensors, shared "
        "tensors, item ids. fedrecgel.PersonalModel.load reads it and scores items.",
    )
    parser.add_argument(
        "--run", required=True, dest="run_folder", metavar="RUN", help="made by: fedrecgel simulate"
    )
    parser.add_argument("--user", required=True, metavar="ID", help="user of the data set")
    parser.add_argument("--out", required=True, type=Path, metavar="FILE", help="file to write")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE")
    parser.add_argument("--json", action="store_true", help="print what was written as JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import print_json
    from fedrecgel.simulation.result import Result

    check_file(arguments.out, overwrite=arguments.overwrite)
    result = Result.open(arguments.run_folder)
    read = filter(None, (result.path, result.data.path))
    refuse_inside(arguments.out, *read, *state_folders(arguments.out))
    model = result.personal_model(arguments.user)
    model.save(arguments.out)
    shapes = {name: list(value.shape) for name, value in model.private.items()}
    if arguments.json:
        print_json({"file": str(arguments.out), "items": len(model.items), "private": shapes})
    else:
        print(f"{arguments.out}: private {', '.join(shapes)}, {len(model.items):,} items")
    return 0
