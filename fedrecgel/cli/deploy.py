"""``fedrecgel deploy``: a deployment over a network, in containers or as plain processes."""

from typing import Any

from fedrecgel.cli import deploy_containers, deploy_local


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command and the commands below it."""
    parser = commands.add_parser(
        "deploy",
        help="run a federation over a network: sites of their own, TLS, registered nodes",
        description="Set up and run a federation of separate sites.",
    )
    below = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    deploy_local.add_parsers(below)
    deploy_containers.add_parsers(below)
