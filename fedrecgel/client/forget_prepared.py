"""What a site prepared from its file, for somebody who is to be forgotten.

A run in progress needs its data set as it is: users are known by their places in it. Data sets of
runs that have ended are needed by nobody; a run that is resumed prepares the file anew.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedrecgel.client.lock import alone
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import DataError, RunError

BLOCK = 1 << 20


@dataclass
class Forgotten:
    """Folders that are gone, and those that stay because a run may still use them."""

    removed: list[Path] = field(default_factory=list)
    kept: list[Path] = field(default_factory=list)


def forget_prepared(state: Path, user_id: str, runs: Mapping[str, bool], last: float) -> Forgotten:
    """Overwrite and remove the data sets with a user that no run in progress uses.

    Parameters
    ----------
    state
        The site's state folder.
    runs
        Whether a run that the private store knows has ended, by its id.
    last
        When the store was written last, in seconds since 1970. A run that it does not know has
        ended if it was prepared before that: its state left the store for that of later runs.

    Raises
    ------
    RunError
        When a file cannot be removed.
    """
    found = Forgotten()
    if not (state / "prepared").is_dir():
        return found
    with alone(state):
        pointers = {path: _data_of(path) for path in (state / "runs").glob("*.json")}
        for folder in sorted((state / "prepared").iterdir()):
            if not _holds(folder, user_id):
                continue
            own = [path for path, data in pointers.items() if data == folder.name]
            if all(runs.get(path.stem, path.stat().st_mtime < last) for path in own):
                for path in own:
                    path.unlink()
                _erase(folder)
                found.removed.append(folder)
            else:
                found.kept.append(folder)
    return found


def _data_of(pointer: Path) -> str:
    try:
        return str(json.loads(pointer.read_text(encoding="utf-8"))["data"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _holds(folder: Path, user_id: str) -> bool:
    """Whether a user is in a data set; in one that cannot be read anybody may be."""
    try:
        return user_id in Dataset.load(folder).user_ids.tolist()
    except DataError:
        return True


def _erase(folder: Path) -> None:
    try:
        for path in folder.rglob("*"):
            if path.is_file():
                _overwrite(path)
        shutil.rmtree(folder)
    except OSError as error:
        raise RunError(f"{folder} cannot be removed: {error.strerror or error}") from None


def _overwrite(path: Path) -> None:
    left = path.stat().st_size
    with path.open("r+b") as file:
        while left > 0:
            left -= file.write(bytes(min(left, BLOCK)))
        file.flush()
        os.fsync(file.fileno())
