"""The first thing that a container or service does: look at its folders, then become Flower's.

What is wrong with a folder is said here in one line. Flower would start, say that it is online,
and fail when the first run arrives.
"""

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.flower import environment


def become(command: Sequence[str]) -> NoReturn:
    """Replace this process by one of Flower's, with a writable home.

    Raises
    ------
    DeployError
        When there is no such program.
    """
    home = flower_home()
    variables = environment(home)
    try:
        os.execvpe(command[0], list(command), variables)
    except OSError as error:
        raise DeployError(
            f"{command[0]} cannot be started ({error.strerror}); install Flower into the Python "
            "that runs this"
        ) from None


def flower_home() -> Path:
    """Flower's folder, which it must be able to write.

    Raises
    ------
    DeployError
        When it cannot.
    """
    try:
        home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    except RuntimeError:  # a user that no password file knows, without HOME
        raise DeployError(f"{_who()} has no home; set FLWR_HOME to a folder it may write") from None
    check_writable([home])
    return home


def check_keys(folder: Path, *names: str) -> None:
    """Refuse a folder that lacks one of these files or does not let them be read.

    Raises
    ------
    DeployError
        Naming the file.
    """
    check_readable([folder / name for name in names])


def check_readable(files: Iterable[Path]) -> None:
    """Read the first byte of each file.

    Raises
    ------
    DeployError
        Naming the file that cannot be read, and who tried.
    """
    for path in files:
        try:
            with path.open("rb") as file:
                file.read(1)
        except OSError as error:
            raise DeployError(
                f"{_who()} cannot read {path} ({error.strerror}); mount it there, readable for "
                "that user"
            ) from None


def check_writable(folders: Iterable[Path]) -> None:
    """Make each folder, for its owner alone, if it is not there, and write a file in it.

    Raises
    ------
    DeployError
        Naming the folder that does not take one, and who tried.
    """
    for folder in folders:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(prefix=".probe-", dir=folder):
                pass
        except OSError as error:
            raise DeployError(
                f"{_who()} cannot write in {folder} ({error.strerror}); mount a volume there that "
                "belongs to that user"
            ) from None


def _who() -> str:
    return f"user {os.getuid()}:{os.getgid()}"
