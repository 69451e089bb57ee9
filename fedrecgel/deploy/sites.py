"""A prepared data set as files of separate sites, for a deployment on one machine or a try-out."""

import csv
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import DeployError
from fedrecgel.common.interactions import Ints

CATALOGUE = "catalogue.json"
INTERACTIONS = "interactions.csv"


@dataclass(frozen=True)
class SiteFile:
    """A site's name, how many users it hosts, and the file of their interactions."""

    name: str
    users: int
    file: Path


def write_sites(
    data: Dataset, folder: Path, names: Sequence[str], sizes: Sequence[int] | None = None
) -> list[SiteFile]:
    """Write ``catalogue.json`` and for each site ``NAME/interactions.csv``.

    Sites get users in the order of the data set, sites in the order of their names: the server's
    numbering of users is then the data set's, and everything drawn for a user the same as in a
    simulation. The files have a column ``time`` that counts a user's interactions from the first:
    a prepared data set keeps their order and not when they were.

    Parameters
    ----------
    sizes
        Users of each site; default: `shares`.

    Raises
    ------
    DeployError
        When there are fewer users than sites.
    DataError
        When the data set was prepared in a way that separate sites cannot follow.
    """
    if list(names) != sorted(names):
        raise DeployError("names of sites must be in order, for users are numbered by them")
    if sizes is None:
        bounds = shares(data.num_users, len(names))
    else:
        bounds = np.concatenate([[0], np.cumsum(sizes)])
    catalogue = Catalogue.of(data)
    folder.mkdir(parents=True, exist_ok=True)
    catalogue.save(folder / CATALOGUE)
    return [
        SiteFile(name, int(last - first), _write(data, int(first), int(last), folder / name))
        for name, first, last in zip(names, bounds[:-1], bounds[1:], strict=True)
    ]


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


def _write(data: Dataset, first: int, last: int, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / INTERACTIONS
    # A site that is running reads the old file or the new one, never a half.
    ready = folder / f".{INTERACTIONS}.{os.getpid()}"
    with ready.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["user", "item", "time"])
        for user in range(first, last):
            held_out = [int(items[user]) for items in (data.validation_items, data.test_items)]
            items = [*data.train_of(user).tolist(), *(item for item in held_out if item >= 0)]
            name = str(data.user_ids[user])
            writer.writerows((name, str(data.item_ids[i]), t) for t, i in enumerate(items, 1))
    os.replace(ready, path)
    return path
