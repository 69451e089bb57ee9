"""``fedrecgel deploy local``, ``certificates`` and ``check``: deployments without containers."""

import argparse
import json
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrecgel.cli.simulate import add_settings, parse_settings
from fedrecgel.common.algorithms.registry import ALGORITHMS
from fedrecgel.common.presets import PRESETS

if TYPE_CHECKING:
    from fedrecgel.deploy.local import LocalDeployment
    from fedrecgel.deploy.one_machine import OneMachine


def add_parsers(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the commands below ``fedrecgel deploy``."""
    _add_local(commands)
    _add_certificates(commands)
    _add_check(commands)


def _add_local(commands: Any) -> None:  # noqa: ANN401
    parser = commands.add_parser(
        "local",
        help="train with separate sites as plain processes of this machine",
        description="Split a prepared data set over sites with files of their own, start a "
        "SuperLink and a SuperNode for each site as processes of this machine (TLS, registered "
        "keys), train, and recommend from what lies at the sites. Then stop everything; private "
        "state stays in OUT/state.",
    )
    parser.add_argument("--data", required=True, metavar="DIR", help="made by: fedrecgel prepare")
    parser.add_argument("--out", required=True, type=Path, metavar="OUT", help="folder to make")
    parser.add_argument("--sites", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="fedrecgel", metavar="NAME")
    parser.add_argument("--preset", choices=PRESETS, default="tuned")
    add_settings(parser, "a setting of: fedrecgel simulate; may be repeated")
    parser.add_argument("--overwrite", action="store_true", help="replace the run in OUT/run")
    parser.add_argument("--resume", action="store_true", help="go on with the run in OUT/run")
    parser.add_argument(
        "--keep", action="store_true", help="keep the processes running after the run, until Ctrl-C"
    )
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.set_defaults(run=_local)


def _add_certificates(commands: Any) -> None:  # noqa: ANN401
    parser = commands.add_parser(
        "certificates",
        help="make certificates and keys for a SuperLink and its sites",
        description="Make an authority, and below OUT a folder for each machine: superlink and one "
        "for each site. A machine gets its own folder and nothing else; authority stays with you.",
    )
    parser.add_argument("sites", nargs="+", metavar="SITE")
    parser.add_argument("--out", required=True, type=Path, metavar="OUT")
    parser.add_argument(
        "--superlink-name",
        action="append",
        default=[],
        metavar="HOST",
        help="name or IP address at which the SuperLink is dialled; may be repeated",
    )
    parser.add_argument("--days", type=int, default=365, help="validity (default: 365)")
    parser.add_argument(
        "--existing",
        choices=("refuse", "keep", "renew"),
        default="refuse",
        help="where a machine's folder is there: refuse (default), keep it and make what is "
        "missing, or renew its certificate",
    )
    parser.set_defaults(run=_certificates)


def _add_check(commands: Any) -> None:  # noqa: ANN401
    parser = commands.add_parser(
        "check",
        help="say in one line whether a SuperLink can be reached from here, or why not",
        description="Dial a SuperLink, verify its certificate and compare versions of Flower.",
    )
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--ca", required=True, type=Path, metavar="FILE", help="its ca.crt")
    parser.set_defaults(run=_check)


def _local(arguments: argparse.Namespace) -> int:
    from fedrecgel.cli import print_json
    from fedrecgel.common.data.dataset import Dataset
    from fedrecgel.common.presets import preset_config
    from fedrecgel.deploy.one_machine import OneMachine

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    settings = parse_settings(arguments)
    data = Dataset.load(arguments.data)
    # What is wrong with a setting is said before anything is written.
    preset_config(arguments.algorithm, arguments.preset, data.name, settings)
    OneMachine.check_run(
        arguments.out, data, overwrite=arguments.overwrite, resume=arguments.resume
    )
    machine = OneMachine.prepare(data, arguments.out, arguments.sites)
    run_config = machine.run_config(
        settings,
        algorithm=arguments.algorithm,
        preset=arguments.preset,
        overwrite=arguments.overwrite,
        resume=arguments.resume,
    )
    for site in machine.sites:
        say(f"{site.name}: {site.users:,} users in {site.file}")
    with _ended_by_sigterm(), machine.running(say) as running:
        result = machine.train(running, run_config, say)
        recommendations = machine.recommendations()
        if arguments.json:
            print_json({**result.values, "recommendations": recommendations})
        else:
            print(result.table())
            print("\nten recommendations at each site, from its own private state:")
            print("\n".join(f"  {line}" for line in recommendations), flush=True)
        if arguments.keep:
            _keep(machine, running, say)
    say(f"stopped; private state is in {machine.folder / 'state'}, the run in {result.path}")
    return 0


def _keep(machine: "OneMachine", running: "LocalDeployment", say: Any) -> None:  # noqa: ANN401
    """Wait for Ctrl-C, or for a process that ends."""
    say(
        "\nthe processes keep running until Ctrl-C; another run from another terminal:\n"
        f"  {another_run(machine.folder, running.operator.home)}"
    )
    try:
        while True:
            running.processes.check()
            time.sleep(1)
    except KeyboardInterrupt:
        say("stopping")


def another_run(folder: Path, home: Path) -> str:
    """The command of a further run, for a shell: paths may hold what shells and TOML take apart."""
    paths = {"catalogue": folder / "sites/catalogue.json", "out": folder / "run-2"}
    # A basic string of TOML is written as one of JSON.
    settings = " ".join(f"{name}={json.dumps(str(path))}" for name, path in paths.items())
    app = shlex.quote(str(folder / "app"))
    return (
        f"FLWR_HOME={shlex.quote(str(home))} flwr run {app} deployment --stream "
        f"-c {shlex.quote(f'{settings} rounds=5')}"
    )


def _certificates(arguments: argparse.Namespace) -> int:
    from fedrecgel.deploy.certificates import make_certificates

    make_certificates(
        arguments.out,
        arguments.sites,
        superlink_names=arguments.superlink_name,
        days=arguments.days,
        existing=arguments.existing,
    )
    print(f"keys and certificates are in {arguments.out}; give each machine its own folder")
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from fedrecgel.deploy.check import check_superlink

    print(check_superlink(arguments.superlink, arguments.ca))
    return 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Let SIGTERM do what Ctrl-C does, so that nothing is left running."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
