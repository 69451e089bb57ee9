"""``fedrecgel references``: what central methods reach on a data set."""

import argparse
from typing import Any

from fedrecgel.common.errors import ConfigError


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "references",
        help="measure popularity, item-knn, EASE, ALS and others on a data set",
        description="Tune methods that see all interactions in one place on validation, and "
        "measure them on the test items, under the same split as a run. Results are kept in the "
        "data folder, so a second call is instant.",
    )
    parser.add_argument("--data", required=True, metavar="DIR", help="made by: fedrecgel prepare")
    parser.add_argument(
        "--methods",
        type=method_names,
        metavar="NAME,...",
        help="of popularity, recent, item-knn, ease, als (default: those that can be had), and "
        "mf, neumf, local-only, which take minutes",
    )
    parser.add_argument("--fresh", action="store_true", help="compute again what was kept")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def method_names(text: str) -> list[str]:
    """Split a list of methods; what is asked for twice is done once."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("name at least one method")
    return names


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import print_json
    from fedrecgel.common.data.dataset import Dataset
    from fedrecgel.simulation.central.comparison import reference_report
    from fedrecgel.simulation.central.text import reference_table

    data = Dataset.load(arguments.data)
    if not (data.test_items >= 0).any():
        raise ConfigError(f"{arguments.data} has no test items; nothing can be measured")
    report = reference_report(data, arguments.methods, fresh=arguments.fresh)
    if arguments.json:
        print_json(report)
    else:
        print(f"{data.name}, protocol {data.protocol}, test items\n\n{reference_table(report)}")
    return 0
