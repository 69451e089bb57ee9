"""``fedrecgel serve``: answer recommendations by gRPC, at a site or from a finished run."""

import argparse
import gc
import os
import sys
from collections.abc import Hashable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrecgel.common.errors import ConfigError

if TYPE_CHECKING:
    from fedrecgel.serve.current import Place
    from fedrecgel.serve.model import Model

ADDRESS = "127.0.0.1:50051"
SWITCH = 0.0005
"""Seconds until a thread of Python that wants to run is let in."""


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "serve",
        help="answer recommendations by gRPC, where the data are",
        description="Answer recommendations by gRPC, where the data are: at a deployed site "
        "(--state and --interactions, as in its node-config), or from a finished run (--run). A "
        "model that a later run publishes is taken over while the server runs.",
    )
    place = parser.add_argument_group("what to serve")
    place.add_argument(
        "--run", dest="run_folder", metavar="RUN", help="made by: fedrecgel simulate"
    )
    place.add_argument("--state", type=Path, metavar="DIR", help="the site's state folder")
    place.add_argument("--interactions", type=Path, metavar="FILE", help="the site's own file")
    place.add_argument("--key-file", type=Path, metavar="FILE", help="key of an encrypted store")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--address",
        default=ADDRESS,
        metavar="HOST:PORT",
        help=f"where to listen, also unix:PATH (default: {ADDRESS}); port 0: a free one",
    )
    how.add_argument("--tls-cert", type=Path, metavar="FILE", help="certificate chain (PEM)")
    how.add_argument("--tls-key", type=Path, metavar="FILE", help="its key (PEM)")
    how.add_argument(
        "--tls-client-ca", type=Path, metavar="FILE", help="only clients that it certifies get in"
    )
    how.add_argument(
        "--plaintext", action="store_true", help="no TLS on an address that others can reach"
    )
    how.add_argument(
        "--threads", type=int, default=1, metavar="N", help="cores for one answer (default: 1)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the command."""
    # What gRPC prints of an address or handshake says less than we do. Before it is loaded.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    place, tls = _place(arguments), _tls(arguments)
    if arguments.threads < 1:
        raise ConfigError(f"--threads must be at least 1, not {arguments.threads}")
    if None in map(find_spec, ("grpc_health", "grpc_reflection")):
        raise ConfigError("serving needs two more packages: pip install 'fedrecgel[serve]'")
    import torch

    from fedrecgel.serve.current import Current
    from fedrecgel.serve.server import Server, run_until_told

    torch.set_num_threads(arguments.threads)
    # A new model is read in Python beside the answers; by default it keeps the lock 5 ms at a time.
    sys.setswitchinterval(SWITCH)
    current = Current(place)
    server = Server(current, arguments.address, tls, plaintext=arguments.plaintext)
    # A site may be started before its first run has ended; a run that is named must be there.
    current.refresh(must=arguments.run_folder is not None)
    # What is there now stays: no answer has to wait 0.1 s while the collector looks through it.
    gc.collect()
    gc.freeze()
    current.start()
    run_until_told(server, lambda: _say(f"serving on {server.address}"))
    _say("stopped")
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _place(arguments: argparse.Namespace) -> "Place":
    site = (arguments.state, arguments.interactions)
    if arguments.run_folder is not None:
        if any((*site, arguments.key_file)):
            raise ConfigError("give --run, or the site's --state and --interactions, not both")
        return RunPlace(Path(arguments.run_folder))
    if None in site:
        raise ConfigError(
            "give what to serve: --state DIR --interactions FILE of a site, or --run RUN"
        )
    from fedrecgel.serve.site_place import SitePlace

    found = SitePlace(*site, arguments.key_file)
    found.check()
    return found


def _tls(arguments: argparse.Namespace) -> Any:  # noqa: ANN401 - Tls, imported where it is used
    files = (arguments.tls_cert, arguments.tls_key)
    if files == (None, None) and arguments.tls_client_ca is None:
        return None
    if None in files:
        raise ConfigError("TLS needs both --tls-cert and --tls-key")
    if arguments.plaintext:
        raise ConfigError("--plaintext contradicts --tls-cert; give one of them")
    from fedrecgel.serve.server import Tls

    return Tls(*files, arguments.tls_client_ca)


class RunPlace:
    """A finished run as a place of models, with all users of its data set."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stamp(self) -> Hashable:
        """See `Place.stamp`."""
        from fedrecgel.serve.current import file_stamp
        from fedrecgel.server.run_folder import RESULT

        return file_stamp(self._folder / RESULT)

    def load(self) -> "Model":
        """See `Place.load`."""
        from fedrecgel.serve.model import Model
        from fedrecgel.serve.people import People
        from fedrecgel.simulation.result import Result

        result = Result.open(self._folder)
        return Model(result.published(), People.of_dataset(result.data), result.store())
