"""``fedrecgel ask``: ask a running server for recommendations or scores."""

import argparse
from pathlib import Path
from typing import Any

from fedrecgel.common.errors import ConfigError


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "ask",
        help="ask a server that fedrecgel serve started",
        description="Print a user's best items, or scores of given items, from a running server.",
    )
    parser.add_argument("address", metavar="HOST:PORT", help="where the server listens")
    parser.add_argument("user", metavar="USER", help="user id")
    parser.add_argument("--k", type=int, default=10, help="how many items (default: 10)")
    parser.add_argument("--items", nargs="+", metavar="ID", help="score these items instead")
    parser.add_argument("--exclude", nargs="+", metavar="ID", default=[], help="leave out")
    parser.add_argument("--repeat", action="store_true", help="also items the user knows already")
    parser.add_argument("--tls-ca", type=Path, metavar="FILE", help="who certified the server")
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="own certificate")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="its key")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    from fedrecgel.cli import print_json
    from fedrecgel.serve.ask import Client

    pair = (arguments.tls_cert, arguments.tls_key)
    if (pair[0] is None) != (pair[1] is None) or (pair[0] and arguments.tls_ca is None):
        raise ConfigError("give --tls-ca, and of --tls-cert and --tls-key both or none")
    own = pair if pair[0] is not None else None
    with Client(arguments.address, arguments.tls_ca, own) as client:
        if arguments.items:
            reply = client.score(arguments.user, arguments.items)
        else:
            reply = client.recommend(
                arguments.user, arguments.k, exclude=arguments.exclude, repeat=arguments.repeat
            )
    if arguments.json:
        print_json(reply)
        return 0
    for place, item in enumerate(reply["items"], 1):
        mark = "  (estimated)" if item["estimated"] else ""
        print(f"{place:>3}  {item['item']:<24} {item['score']:8.3f}{mark}")
    model = reply["model"]
    print(f"source: {reply['source']}; {model['algorithm']}, round {model['round']}")
    return 0
