"""Data to measure on: the published sets where they are to be had, invented ones elsewhere."""

import warnings
from dataclasses import dataclass
from pathlib import Path

from fedrecgel import prepare
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import DataError, DataWarning


@dataclass(frozen=True)
class Stand:
    """A published data set, and the size of the invented one that stands in for it."""

    name: str
    title: str
    users: int
    items: int
    interactions: float


SETS = (
    Stand("filmtrust", "FilmTrust", 1_227, 2_059, 28),
    Stand("ml-100k", "ML-100K", 943, 1_682, 106),
    Stand("amazon-video", "Amazon-Video", 8_072, 11_830, 8),
    Stand("lastfm-2k", "Lastfm-2K", 1_222, 12_274, 57),
)


def prepare_sets(folder: Path, names: list[str], shrink: int = 1) -> dict[str, Dataset]:
    """Data sets by title, which says so where one is invented.

    Parameters
    ----------
    names
        Known names, or paths of files or of prepared folders.
    shrink
        Invent data with so many times fewer users and use no published data (tests).
    """
    found = {}
    for name in names:
        stand = next((s for s in SETS if s.name == name), None)
        if (Path(name) / "manifest.json").is_file():
            data = Dataset.load(name)
            found[data.name] = data
        elif stand is None:
            found[Path(name).stem] = _prepare(name, folder / Path(name).stem)
        else:
            title, data = _published(stand, folder / stand.name, shrink)
            found[title] = data
    return found


def invent(folder: Path, users: int, items: int, interactions: float = 30.0) -> Dataset:
    """An invented data set."""
    target = folder / f"synthetic-{users}-{items}"
    if target.is_dir():
        return Dataset.load(target)
    return prepare("synthetic", target, users=users, items=items, interactions=interactions)


def _published(stand: Stand, target: Path, shrink: int) -> tuple[str, Dataset]:
    if shrink == 1:
        try:
            return stand.title, _prepare(stand.name, target)
        except DataError as error:
            print(f"  {error}\n  invented data of its size are used")
    users, items = max(20, stand.users // shrink), max(300, stand.items // shrink)
    return f"like {stand.title}", invent(target.parent, users, items, stand.interactions)


def _prepare(source: str, target: Path) -> Dataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return prepare(source, target)
