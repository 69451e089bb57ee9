"""``fedrecgel store``: what a site keeps of its users: list, take along, copy, forget."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrecgel.client.state_folder import STORE
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.target import check_file, refuse_replacing

if TYPE_CHECKING:
    from fedrecgel.client.sqlite_file import SqliteFile

FILE = "private.sqlite"


def add_parser(commands: Any) -> None:  # noqa: ANN401 - argparse has no public name for it
    """Add the command."""
    parser = commands.add_parser(
        "store",
        help="list, export or forget what a site keeps of its users",
        description="Look after the private state that a deployed site keeps of its users: one "
        f"file, {STORE} in the site's state folder.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    listing = _action(actions, "list", "print experiments, users, rounds and sizes", run_list)
    listing.add_argument("--user", metavar="ID", help="which rounds of this user are kept")

    export = _action(actions, "export", "write a user's private tensors to a file", run_export)
    export.add_argument("--user", required=True, metavar="ID", help="user of the site")
    export.add_argument(
        "--out", required=True, type=Path, metavar="FILE", help="safetensors file to write"
    )
    export.add_argument(
        "--experiment", metavar="ID", help="default: the one used last that knows the user"
    )
    export.add_argument(
        "--round", type=int, metavar="N", help="default: the chosen one, else the latest"
    )
    export.add_argument("--overwrite", action="store_true", help="replace FILE")

    backup = _action(actions, "backup", "copy the store, also while a node trains", run_backup)
    backup.add_argument("--out", required=True, type=Path, metavar="FILE", help="copy to make")
    backup.add_argument("--overwrite", action="store_true", help="replace FILE")

    forget = _action(actions, "forget", "delete and overwrite a user, or an experiment", run_forget)
    forget.add_argument("--user", metavar="ID", help="user of the site")
    forget.add_argument("--experiment", metavar="ID", help="with --user: only in this one")

    make = actions.add_parser(
        "make-key",
        help="make a key file for an encrypted store",
        description="Write a new random key to FILE (mode 0600), for the node's key-file.",
    )
    make.add_argument("file", type=Path, metavar="FILE", help="file to make")
    make.add_argument("--json", action="store_true", help="print JSON")
    make.set_defaults(run=run_make_key)


def _action(actions: Any, name: str, text: str, run: Any) -> Any:  # noqa: ANN401 - as above
    parser = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
    parser.add_argument(
        "--state", required=True, type=Path, metavar="PATH", help=f"state folder, or its {STORE}"
    )
    parser.add_argument("--key-file", type=Path, metavar="FILE", help="key of an encrypted store")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)
    return parser


def _open(arguments: argparse.Namespace, *, change: bool, need_key: bool = True) -> "SqliteFile":
    from fedrecgel.client.sealing import read_key
    from fedrecgel.client.sqlite_file import SqliteFile

    path = arguments.state / STORE if arguments.state.is_dir() else arguments.state
    key = None if arguments.key_file is None else read_key(arguments.key_file)
    return SqliteFile(path, key=key, read_only=not change, need_key=need_key)


def run_list(arguments: argparse.Namespace) -> int:
    """Print what is in the store; no private numbers."""
    from fedrecgel.cli import print_json
    from fedrecgel.client.store_contents import list_experiments

    if arguments.user is not None:
        return _list_user(arguments)
    file = _open(arguments, change=False, need_key=False)
    experiments = list_experiments(file)
    size = sum(part.stat().st_size for part in _parts(file.path))
    if arguments.json:
        print_json(
            {
                "file": str(file.path),
                "site": file.site,
                "encrypted": file.encrypted,
                "bytes": size,
                "experiments": [vars(one) for one in experiments],
            }
        )
        return 0
    kind = "encrypted" if file.encrypted else "not encrypted"
    print(f"{file.path}: site {file.site}, {kind}, {size:,} bytes")
    for one in experiments:
        rounds = "{}..{}".format(*one.rounds) if one.states else "none"
        print(
            f"{one.experiment}  {one.algorithm or '-'}  {one.users:,} users  rounds {rounds}  "
            f"{one.bytes:,} bytes  last saved {one.saved}"
            + ("  finished" if one.finished else "")
            + (f"  {one.forgotten:,} forgotten" if one.forgotten else "")
        )
    return 0


def _list_user(arguments: argparse.Namespace) -> int:
    from fedrecgel.cli import print_json
    from fedrecgel.client.store_contents import list_user

    held = list_user(_open(arguments, change=False), arguments.user)
    if arguments.json:
        print_json([vars(one) for one in held])
        return 0
    for one in held:
        rounds = ", ".join(map(str, one.rounds)) or "none"
        print(f"{one.experiment}  rounds {rounds}  chosen {one.chosen or 'none'}")
    return 0


def _parts(path: Path) -> list[Path]:
    parts = [path, path.with_name(f"{path.name}-wal")]
    return [part for part in parts if part.exists()]


def run_export(arguments: argparse.Namespace) -> int:
    """Write one user's private tensors to a file."""
    from fedrecgel.cli import print_json
    from fedrecgel.client.store_contents import export_user

    out = _out(arguments)
    file = _open(arguments, change=False)
    written = export_user(file, arguments.user, out, arguments.experiment, arguments.round)
    if arguments.json:
        print_json({"file": str(out), **written})
    else:
        print(f"{out}: user {arguments.user}, round {written['round']} of {written['experiment']}")
    return 0


def _out(arguments: argparse.Namespace) -> Path:
    check_file(arguments.out, overwrite=arguments.overwrite)
    if arguments.key_file is not None:
        refuse_replacing(arguments.out, arguments.key_file)
    return arguments.out  # type: ignore[no-any-return]


def run_backup(arguments: argparse.Namespace) -> int:
    """Copy the store; an encrypted one stays so."""
    from fedrecgel.cli import print_json
    from fedrecgel.client.store_contents import back_up

    out = _out(arguments)
    back_up(_open(arguments, change=False, need_key=False), out)
    size = out.stat().st_size
    if arguments.json:
        print_json({"file": str(out), "bytes": size})
    else:
        print(f"{out}: {size:,} bytes; who is forgotten later is still in this copy")
    return 0


def run_forget(arguments: argparse.Namespace) -> int:
    """Delete and overwrite a user or an experiment."""
    from fedrecgel.cli import print_json
    from fedrecgel.client.store_contents import forget_experiment

    if arguments.user is None and arguments.experiment is None:
        raise ConfigError("give --user ID, --experiment ID, or both")
    file = _open(arguments, change=True, need_key=arguments.user is not None)
    if arguments.user is not None:
        return _forget_user(file, arguments)
    forget_experiment(file, arguments.experiment)
    found = [arguments.experiment]
    if arguments.json:
        print_json({"file": str(file.path), "forgotten": "experiment", "experiments": found})
    else:
        print(f"experiment forgotten: gone from {', '.join(found)}")
    return 0


def _forget_user(file: "SqliteFile", arguments: argparse.Namespace) -> int:
    """In the store, and, unless only one experiment is meant, in what was prepared."""
    from fedrecgel.cli import print_json
    from fedrecgel.client.forget_prepared import Forgotten, forget_prepared
    from fedrecgel.client.store_contents import NothingHeld, forget_user, runs_ended

    user, prepared, found = arguments.user, Forgotten(), list[str]()
    if arguments.experiment is None:
        prepared = forget_prepared(file.path.parent, user, *runs_ended(file))
    try:
        found = forget_user(file, user, arguments.experiment)
    except NothingHeld:
        if not prepared.removed:
            raise
    if arguments.json:
        folders = {name: list(map(str, value)) for name, value in vars(prepared).items()}
        told = {"file": str(file.path), "forgotten": "user", "experiments": found}
        print_json({**told, "prepared": folders})
        return 0
    print(f"user forgotten: gone from {', '.join([*found, *map(str, prepared.removed)])}")
    for folder in prepared.kept:
        print(
            f"still in {folder}, which a run uses that has not ended: take the person out of the "
            "site's file, and say this again when it has ended"
        )
    return 0


def run_make_key(arguments: argparse.Namespace) -> int:
    """Make a key file."""
    from fedrecgel.cli import print_json
    from fedrecgel.client.sealing import make_key

    make_key(arguments.file)
    if arguments.json:
        print_json({"file": str(arguments.file)})
    else:
        print(f"{arguments.file}: keep a copy elsewhere; without it the store cannot be read")
    return 0
