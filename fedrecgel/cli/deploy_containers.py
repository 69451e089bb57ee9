"""``fedrecgel deploy compose``, and what its containers run: set-up, start, register, run."""

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrecgel.common.address import split_address
from fedrecgel.common.config import kebab
from fedrecgel.common.errors import ConfigError, DeployError

if TYPE_CHECKING:
    from fedrecgel.deploy.control import Operator


def add_parsers(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the commands below ``fedrecgel deploy``."""
    _add_compose(commands)
    _add_set_up(commands)
    _add_start(commands)
    _add_register(commands)
    _add_run(commands)


def _add_compose(commands: Any) -> None:  # noqa: ANN401
    parser = commands.add_parser(
        "compose",
        help="write a compose file, and the sites' files",
        description="Write docker-compose.yml for a SuperLink and N sites. With --data the users "
        "of a prepared data set are split over the sites; without, the containers make data when "
        "they first start.",
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="made by: fedrecgel prepare")
    parser.add_argument("--sites", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--out", type=Path, default=Path(), metavar="DIR", help="default: here")
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="replace docker-compose.yml in DIR, and below DIR/sites the files that this command "
        "wrote; a file that was changed since, or is a site's own, is never replaced",
    )
    parser.set_defaults(run=_compose)


def _add_set_up(commands: Any) -> None:  # noqa: ANN401
    parser = commands.add_parser(
        "set-up",
        help="make the keys of a compose file's containers (run by the containers)",
        description="Make keys and certificates for all containers, once. A second time changes "
        "nothing but certificates that are about to expire.",
    )
    parser.add_argument("sites", nargs="+", metavar="SITE")
    parser.add_argument("--keys", type=Path, required=True, metavar="DIR")
    parser.add_argument(
        "--superlink-name",
        action="append",
        default=[],
        metavar="HOST",
        help="further name or address at which the SuperLink is dialled; may be repeated",
    )
    parser.add_argument("--synthetic", type=Path, metavar="DIR", help="also make data, in DIR/SITE")
    parser.set_defaults(run=_set_up)


def _add_start(commands: Any) -> None:  # noqa: ANN401
    parser = commands.add_parser(
        "start",
        help="check folders, then become one of Flower's processes (run by the containers)",
        description="Check that keys can be read and folders be written, then become a SuperLink, "
        "a SuperNode or the SuperExec of either.",
    )
    kinds = parser.add_subparsers(title="processes", metavar="PROCESS", required=True)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--keys", type=Path, required=True, metavar="DIR")

    link = kinds.add_parser("superlink", parents=[common], help="the server's end of all links")
    link.add_argument("--database", type=Path, required=True, metavar="FILE")
    link.add_argument("--bind", default="0.0.0.0", metavar="HOST", help="listen there")
    link.add_argument(
        "--api-bind",
        metavar="HOST",
        help="where sites have a port of their own: the API only there",
    )
    link.set_defaults(run=_start_superlink)

    node = kinds.add_parser("supernode", parents=[common], help="a site's end of its link")
    node.add_argument("--superlink", default="superlink", metavar="HOST[:PORT]")
    node.add_argument("--site", required=True, metavar="NAME")
    node.add_argument(
        "--interactions", required=True, metavar="FILE", help="as the site's client app sees it"
    )
    node.add_argument(
        "--state", required=True, metavar="DIR", help="private state, as the client app sees it"
    )
    node.add_argument("--key-file", metavar="FILE", help="encrypt the private state with this key")
    node.set_defaults(run=_start_supernode)

    executor = kinds.add_parser("superexec", parents=[common], help="starts the apps' processes")
    executor.add_argument("--address", required=True, metavar="HOST:PORT")
    executor.add_argument("--writable", type=Path, action="append", default=[], metavar="DIR")
    executor.add_argument("--readable", type=Path, action="append", default=[], metavar="FILE")
    executor.add_argument(
        "--warm", action="store_true", help="import torch once, not for each message to a site"
    )
    executor.set_defaults(run=_start_superexec)


def _add_register(commands: Any) -> None:  # noqa: ANN401
    parser = commands.add_parser(
        "register",
        help="let sites' nodes in at a SuperLink",
        description="Register the public key of each site, KEYS/SITE.pub or KEYS/SITE/node.pub, as "
        "in the folder of fedrecgel deploy certificates; again is no error.",
    )
    parser.add_argument("sites", nargs="+", metavar="SITE")
    _add_operator(parser)
    parser.set_defaults(run=_register)


def _add_run(commands: Any) -> None:  # noqa: ANN401
    parser = commands.add_parser(
        "run",
        help="hand a run in at a SuperLink and follow it to its end",
        description="Hand a run in, print what it says, and end with code 0 if it finished well. "
        "{time} in a value becomes the time of day.",
    )
    parser.add_argument("values", nargs="*", metavar="NAME=VALUE", help="e.g. rounds=5 seed=1")
    parser.add_argument("--app", type=Path, required=True, metavar="DIR", help="the Flower app")
    _add_operator(parser)
    parser.set_defaults(run=_run)


def _add_operator(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT", help="of its API")
    parser.add_argument(
        "--keys", type=Path, required=True, metavar="DIR", help="holds ca.crt, or authority"
    )


def _compose(arguments: argparse.Namespace) -> int:
    from fedrecgel.deploy.compose import write_compose

    for line in write_compose(
        arguments.out, arguments.sites, arguments.data, overwrite=arguments.overwrite
    ):
        print(line)
    return 0


def _set_up(arguments: argparse.Namespace) -> int:
    from fedrecgel.deploy.set_up import make_data, make_keys

    make_keys(arguments.keys, arguments.sites, arguments.superlink_name)
    if arguments.synthetic:
        make_data(arguments.synthetic, arguments.sites)
    print(f"keys of {len(arguments.sites)} sites are in {arguments.keys}")
    return 0


def _start_superlink(arguments: argparse.Namespace) -> int:
    from fedrecgel.deploy.flower import SuperLink, flower_version, superlink_command
    from fedrecgel.deploy.start import become, check_keys, check_writable

    check_keys(arguments.keys, "ca.crt", "tls.crt", "tls.key", "superexec.secret")
    check_writable([arguments.database.parent])
    become(
        superlink_command(
            SuperLink(),
            arguments.keys,
            arguments.database,
            flower_version(),
            bind=arguments.bind,
            api_bind=arguments.api_bind,
        )
    )


def _start_supernode(arguments: argparse.Namespace) -> int:
    from fedrecgel.deploy.check import check_link
    from fedrecgel.deploy.flower import SuperLink, flower_version, supernode_command
    from fedrecgel.deploy.start import become, check_keys

    check_keys(arguments.keys, "ca.crt", "tls.crt", "tls.key", "superexec.secret", "node")
    config = {
        "site": arguments.site,
        "interactions": arguments.interactions,
        "state": arguments.state,
    }
    if arguments.key_file:
        config["key-file"] = arguments.key_file
    link = SuperLink.at(arguments.superlink)
    print(check_link(link, arguments.keys / "ca.crt"), flush=True)
    become(supernode_command(link, arguments.keys, config, flower_version()))


def _start_superexec(arguments: argparse.Namespace) -> int:
    from fedrecgel.deploy.flower import superexec_command
    from fedrecgel.deploy.start import become, check_keys, check_readable, check_writable

    # Not dialled: what it is to work for may start later. It would try a wrong one for ever.
    split_address(arguments.address)
    check_keys(arguments.keys, "ca.crt", "superexec.secret")
    check_readable(arguments.readable)
    check_writable(arguments.writable)
    become(superexec_command(arguments.address, arguments.keys, warm=arguments.warm))


def _register(arguments: argparse.Namespace) -> int:
    with _operator(arguments) as operator:
        for site in arguments.sites:
            new = operator.register(_there(arguments.keys, f"{site}.pub", f"{site}/node.pub"), site)
            print(f"{site} is {'registered' if new else 'registered already'}")
    return 0


def _run(arguments: argparse.Namespace) -> int:
    clock = time.strftime("%Y-%m-%d-%H%M%S")
    values = run_values([text.replace("{time}", clock) for text in arguments.values])
    with _operator(arguments) as operator:
        operator.run(arguments.app, values, lambda line: print(line, flush=True))
    return 0


def run_values(texts: list[str]) -> dict[str, bool | int | float | str]:
    """Values of run-config, typed as Flower wants them; the last of a name counts.

    Raises
    ------
    ConfigError
        When a text is not NAME=VALUE.
    """
    found: dict[str, bool | int | float | str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise ConfigError(f"'{text}' is not NAME=VALUE, e.g. rounds=5")
        found[kebab(name)] = _typed(value)
    return found


def _typed(text: str) -> bool | int | float | str:
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


@contextmanager
def _operator(arguments: argparse.Namespace) -> Iterator["Operator"]:
    """An operator with a Flower home of its own: the user's holds connections of theirs."""
    from fedrecgel.deploy.control import Operator
    from fedrecgel.deploy.start import check_readable

    split_address(arguments.superlink)
    ca = _there(arguments.keys, "ca.crt", "authority/ca.crt")
    check_readable([ca])
    with tempfile.TemporaryDirectory(prefix="fedrecgel-") as home:
        yield Operator.of(Path(home), arguments.superlink, ca)


def _there(folder: Path, *names: str) -> Path:
    """The first of these files that is there."""
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        raise DeployError(f"{folder} holds neither {' nor '.join(names)}")
    return found[0]
