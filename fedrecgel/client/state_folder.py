"""A site's state folder: whether it can be written, and whose it is."""

import json
import os
from pathlib import Path

from fedrecgel.common.errors import DataError, RunError
from fedrecgel.common.json_file import write_json

OWNER, STORE = "site.json", "private.sqlite"
OWN = 0o600
"""Mode of every file in the state folder; folders have 0700."""


def take(state: Path, site: str) -> None:
    """Make the folder this site's. To be called by one process at a time.

    Raises
    ------
    RunError
        When it is another's: the two would mix up their data.
    """
    noted = state / OWNER
    try:
        owner = str(json.loads(noted.read_text())["site"])
    except (OSError, ValueError, KeyError, TypeError):
        write_json(noted, {"site": site}, OWN)
        return
    if owner != site:
        raise RunError(
            f"{state} belongs to site '{owner}'; give each site a state folder of its own"
        )


def state_folders(path: Path) -> list[Path]:
    """The state folders, of any site, that a path lies in."""
    place = path.resolve()
    return [
        folder
        for folder in (place, *place.parents)
        if (folder / OWNER).is_file() and (folder / STORE).is_file()
    ]


def check_writable(state: Path) -> None:
    """Write and remove a file: better said at the start than after the first round.

    Raises
    ------
    DataError
        Naming the folder, and who tried.
    """
    probe = state / f".probe-{os.getpid()}"
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        state.chmod(0o700)
        probe.write_bytes(bytes(8))
        probe.unlink()
    except OSError as error:
        user = f" by user {os.getuid()}" if hasattr(os, "getuid") else ""
        raise DataError(
            f"state folder {state} cannot be written{user}: {error.strerror or error}; mount a "
            "folder there that is the node's own"
        ) from None
