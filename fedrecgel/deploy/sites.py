"""A prepared data set as files of separate sites, for a deployment on one machine or a try-out."""

import csv
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.manifest import file_hash
from fedrecgel.common.errors import DeployError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.json_file import write_json

CATALOGUE = "catalogue.json"
INTERACTIONS = "interactions.csv"
MADE = "made.json"
"""Notes which files were written here, by their sha256: others are a site's own."""


@dataclass(frozen=True)
class SiteFile:
    """A site's name, how many users it hosts, and the file of their interactions."""

    name: str
    users: int
    file: Path


def write_sites(
    data: Dataset,
    folder: Path,
    names: Sequence[str],
    sizes: Sequence[int] | None = None,
    *,
    readable: bool = False,
) -> list[SiteFile]:
    """Write ``catalogue.json`` and for each site ``NAME/interactions.csv``.

    Files of an earlier call are replaced, or removed where there is no such site any more. A file
    that is not as it was written is a site's own, and stays.

    Sites get users in the order of the data set, sites in the order of their names: the server's
    numbering of users is then the data set's, and everything drawn for a user the same as in a
    simulation. The files have a column ``time`` that counts a user's interactions from the first:
    a prepared data set keeps their order and not when they were.

    Parameters
    ----------
    sizes
        Users of each site; default: `shares`.
    readable
        For all users of the machine, as containers need it, not for the owner alone.

    Raises
    ------
    DeployError
        When there are fewer users than sites, or a site's own file is where one would be written;
        nothing is changed then.
    DataError
        When the data set was prepared in a way that separate sites cannot follow.
    """
    files = {name: folder / name / INTERACTIONS for name in names}
    if list(names) != sorted(names):
        raise DeployError("names of sites must be in order, for users are numbered by them")
    if sizes is None:
        bounds = shares(data.num_users, len(names))
    else:
        bounds = np.concatenate([[0], np.cumsum(sizes)])
    catalogue = Catalogue.of(data)
    mode = 0o644 if readable else 0o600
    _make_folder(folder, readable)
    with tempfile.TemporaryDirectory(prefix=".writing-", dir=folder) as scratch:
        new = {name: Path(scratch) / name for name in names}
        for path, first, last in zip(new.values(), bounds[:-1], bounds[1:], strict=True):
            _write(data, int(first), int(last), path, mode)
        before, made = _made(folder), {name: file_hash(path) for name, path in new.items()}
        for name in names:
            if _hash(files[name]) not in (None, made[name], before.get(name)):
                raise DeployError(
                    f"{files[name]} is not what was written there: a site's own file? move it away "
                    "to have it replaced, or give another --out"
                )
        catalogue.save(folder / CATALOGUE)
        for name, path in new.items():
            _make_folder(folder / name, readable)
            # A site that is running reads the old file or the new one, never a half.
            os.replace(path, files[name])
    for name in before.keys() - made.keys():
        gone = folder / name / INTERACTIONS
        if _hash(gone) == before[name]:
            gone.unlink()
    write_json(folder / MADE, made, 0o600)
    sizes = np.diff(bounds).tolist()
    return [SiteFile(name, users, files[name]) for name, users in zip(names, sizes, strict=True)]


def _make_folder(folder: Path, readable: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755 if readable else 0o700)


def _hash(path: Path) -> str | None:
    """None where there is no file."""
    return file_hash(path) if path.is_file() else None


def _made(folder: Path) -> dict[str, str]:
    """The hash of each site's file as it was last written here."""
    try:
        found = json.loads((folder / MADE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def shares(users: int, sites: int) -> Ints:
    """(S + 1,) bounds of the sites' users: each site has about half as many as the one before it.

    The last of several has a single user, the case in which least is hidden.

    Raises
    ------
    DeployError
        When there are too few users.
    """
    if sites < 1 or users < sites:
        raise DeployError(f"{users} users cannot be split over {sites} sites")
    if sites == 1:
        return np.array([0, users])
    others = sites - 1
    parts = 0.5 ** np.arange(others)
    # Everybody gets a user first, so that no site is left without any.
    inner = np.floor(np.cumsum(parts) / parts.sum() * (users - sites)) + np.arange(1, sites)
    return np.concatenate([[0], inner, [users]]).astype(np.int64)


def _write(data: Dataset, first: int, last: int, path: Path, mode: int) -> None:
    private = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
    with os.fdopen(private, "w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "time"])
        for user in range(first, last):
            held_out = [int(items[user]) for items in (data.validation_items, data.test_items)]
            items = [*data.train_of(user).tolist(), *(item for item in held_out if item >= 0)]
            name = str(data.user_ids[user])
            writer.writerows((name, str(data.item_ids[i]), t) for t, i in enumerate(items, 1))
