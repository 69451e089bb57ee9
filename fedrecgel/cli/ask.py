"""``fedrecgel ask``: ask a running server for recommendations or scores."""

import argparse
import os
from pathlib import Path
from typing import Any

from fedrecgel.common.errors import ConfigError, FedRecError


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
    # What gRPC prints of a failed handshake says less than we do. Before it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from fedrecgel.cli import print_json
    from fedrecgel.serve.ask import Unreachable

    pair = (arguments.tls_cert, arguments.tls_key)
    if (pair[0] is None) != (pair[1] is None) or (pair[0] and arguments.tls_ca is None):
        raise ConfigError("give --tls-ca, and of --tls-cert and --tls-key both or none")
    own = pair if pair[0] is not None else None
    try:
        reply = _reply(arguments, own)
    except Unreachable as error:
        raise FedRecError(_why(arguments, str(error))) from None
    if arguments.json:
        print_json(reply)
        return 0
    for place, item in enumerate(reply["items"], 1):
        mark = "  (estimated)" if item["estimated"] else ""
        print(f"{place:>3}  {item['item']:<24} {item['score']:8.3f}{mark}")
    model = reply["model"]
    print(f"source: {reply['source']}; {model['algorithm']}, round {model['round']}")
    return 0


def _reply(arguments: argparse.Namespace, own: tuple[Path, Path] | None) -> dict[str, Any]:
    from fedrecgel.deploy.probe import probe, reach
    from fedrecgel.serve.ask import Client

    with Client(arguments.address, arguments.tls_ca, own) as client:
        if not _is_unix(arguments.address):
            if arguments.tls_ca is None:
                reach(arguments.address)
            else:
                probe(arguments.address, arguments.tls_ca)
        if arguments.items:
            return client.score(arguments.user, arguments.items)
        return client.recommend(
            arguments.user, arguments.k, exclude=arguments.exclude, repeat=arguments.repeat
        )


def _why(arguments: argparse.Namespace, line: str) -> str:
    """Why a server that can be reached did not answer."""
    from fedrecgel.deploy.probe import speaks_tls

    address = arguments.address
    if _is_unix(address):
        return line
    if arguments.tls_ca is None and speaks_tls(address):
        return f"{address} speaks TLS; give --tls-ca, the certificate of who certified it"
    if arguments.tls_ca is not None and arguments.tls_cert is None:
        return f"{line} does it want a certificate of yours? give --tls-cert and --tls-key"
    return line


def _is_unix(address: str) -> bool:
    return address.startswith("unix:")
