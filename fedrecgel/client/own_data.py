"""A site with a file of its own, prepared by the catalogue that the server publishes.

Every message may be a new process, so all that lasts is in the state folder::

    prepared/KEY/     data sets; KEY is a hash of catalogue and file
    runs/ID.json      which of them a run uses: a file that changes changes no run that has begun
    site.json         whose folder it is
    source.json       size, time and hash of the file when it was read last
    private.sqlite    private state
    published/        the shared model of the last run that ended, for serving
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from fedrecgel.client.lock import alone
from fedrecgel.client.site import Site, StateShape, data_version, open_data
from fedrecgel.client.sqlite_store import SqliteStore, read_key
from fedrecgel.client.state_folder import OWN, STORE, check_writable, take
from fedrecgel.common.data.catalogue import UNKNOWN, Catalogue, site_dataset
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.files import source_hash
from fedrecgel.common.data.manifest import arrays_hash
from fedrecgel.common.errors import ConfigError, DataError, FederationError, RunError
from fedrecgel.common.greeting import LONGEST_NAME, Hello, Query, is_name
from fedrecgel.common.json_file import write_json
from fedrecgel.common.requests import Experiment
from fedrecgel.common.state import State

RUNS = 16
"""Runs whose data a site keeps; what only older ones used is removed."""
LOG = logging.getLogger("flwr")


@dataclass(frozen=True, eq=False)
class OwnDataSite(Site):
    """All users of a site's own file.

    Attributes
    ----------
    run
        Id of the run that the data were prepared for.
    key_file
        Encrypts private state; empty = it is only protected by the rights of the file.
    """

    publishes: ClassVar[bool] = True

    run: str = ""
    key_file: str = ""

    @property
    def catalogue(self) -> str:
        """Hash of the catalogue it was prepared by."""
        return str(self.data.manifest.source["catalogue"])

    def hello(self) -> Hello:
        """See `Site.hello`."""
        base = super().hello()
        unknown = int(str(self.data.manifest.report[UNKNOWN]))
        return Hello(**{**vars(base), "unknown": unknown, "fingerprint": self._fingerprint()})

    def _fingerprint(self) -> str:
        """Tells the server of equal data at two sites, and tells nothing about anybody.

        It is over the items of all users together, without ids, in a way that is slow on purpose
        (scrypt, RFC 7914) and another one in every run. A site with one user has none: two people
        may well have the same few items, and one person's items can be guessed.
        """
        if len(self.users) < 2:
            return ""
        names = ("train_items", "train_offsets", "validation_items", "test_items")
        items = arrays_hash({name: getattr(self.data, name) for name in names})
        return hashlib.scrypt(
            items.encode(), salt=self.run.encode(), n=2**14, r=8, p=1, dklen=16
        ).hex()

    def store(self, experiment: Experiment, template: State) -> SqliteStore:
        """See `Site.store`."""
        return _open_store(self, experiment.id, experiment.key, StateShape(template))


@lru_cache(maxsize=64)
def _open_store(site: OwnDataSite, experiment: str, about: str, shape: StateShape) -> SqliteStore:
    key = read_key(Path(site.key_file)) if site.key_file else None
    ids = site.data.user_ids.tolist()
    path = site.state_folder / STORE
    return SqliteStore(path, experiment, site.name, ids, shape.state, key, about=about)


@dataclass(frozen=True)
class Place:
    """What the node's configuration says of such a site."""

    name: str
    interactions: Path
    state: Path
    key_file: str

    @classmethod
    def of(cls, values: Mapping[str, object]) -> "Place":
        """Read node-config.

        Raises
        ------
        ConfigError
            Naming what is missing, with an example.
        """
        for key, example in (
            ("site", "clinic-a"),
            ("interactions", "/data/interactions.csv"),
            ("state", "/state"),
        ):
            if key not in values:
                raise ConfigError(
                    f"the node has no '{key}'; give it in --node-config, e.g. {key}={example!r}"
                )
        name = str(values["site"])
        if not is_name(name):
            raise ConfigError(
                f"'site' is {name!r}; a name has 1 to {LONGEST_NAME} characters that can be shown"
            )
        file, state = (Path(os.path.abspath(str(values[k]))) for k in ("interactions", "state"))
        return cls(name, file, state, str(values.get("key-file", "")))


def open_own_data(values: Mapping[str, object], asked: Query | Experiment | None) -> OwnDataSite:
    """The site that a node with ``interactions`` of its own is.

    Parameters
    ----------
    values
        Of node-config: ``site``, ``interactions``, ``state``, ``key-file`` (optional).
    asked
        The server's query, for which the data are prepared, or a later message's experiment.

    Raises
    ------
    FedRecError
        In one line that begins with the site's name.
    """
    place = Place.of(values)
    if asked is None:
        raise FederationError(
            f"{place.name} has a file of its own and needs the server's catalogue, which only "
            "FedRecStrategy sends; for other strategies give the node prepared data: data=FOLDER"
        )
    try:
        if isinstance(asked, Query):
            check_writable(place.state)
            if place.key_file:
                read_key(Path(place.key_file))
            folder = _prepare(place, asked)
        else:
            folder = prepared_for(place.state, asked.id)
    except (DataError, RunError) as error:
        raise type(error)(f"{place.name}: {error}") from None
    run = asked.run if isinstance(asked, Query) else asked.id
    # `store forget` may have had the data set made again in its place.
    return _open(place, folder, run, data_version(folder))


@lru_cache(maxsize=64)
def _open(place: Place, folder: Path, run: str, version: int) -> OwnDataSite:
    data = open_data(str(folder), version)
    return OwnDataSite(
        place.name, data, 0, data.num_users, place.state, run=run, key_file=place.key_file
    )


def prepared_for(state: Path, run: str) -> Path:
    """Folder of the data set that a run uses at the site with this state folder.

    Raises
    ------
    DataError
        When it has none.
    """
    try:
        key = str(json.loads(_pointer(state, run).read_text())["data"])
    except (OSError, ValueError, KeyError, TypeError):
        key = ""
    folder = state / "prepared" / key
    if not key or not folder.is_dir():
        raise DataError(
            f"{state} holds no data prepared for this run: the folder was replaced, or is another "
            "site's; give the node the folder that it had, or begin a new run"
        )
    return folder


def _prepare(place: Place, query: Query) -> Path:
    """Folder of the data prepared for the run, made if there is none."""
    if query.catalogue is None:
        raise DataError(
            "the server sent no catalogue, which a site with a file of its own needs; start the "
            "server with catalogue=FILE"
        )
    with alone(place.state):
        take(place.state, place.name)
        try:
            folder = prepared_for(place.state, query.run)
            data = Dataset.load(folder)
            if data.manifest.source["catalogue"] == query.catalogue.hash:
                return folder
        except DataError:
            pass
        digest = _source_hash(place)
        key = hashlib.sha256(f"{query.catalogue.hash} {digest}".encode()).hexdigest()[:16]
        folder = place.state / "prepared" / key
        try:
            Dataset.load(folder)
        except DataError:
            shutil.rmtree(folder, ignore_errors=True)
            _make(place, query.catalogue, folder)
        pointer = _pointer(place.state, query.run)
        pointer.parent.mkdir(exist_ok=True, mode=0o700)
        write_json(pointer, {"data": key}, OWN)
        _forget_old_runs(place.state)
    return folder


def _make(place: Place, catalogue: Catalogue, folder: Path) -> None:
    folder.parent.mkdir(exist_ok=True, mode=0o700)
    data = site_dataset(catalogue, place.interactions, folder)
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o700 if path.is_dir() else OWN)
    report, unknown = data.manifest.report, data.manifest.report[UNKNOWN]
    interactions = int(str(report["rows_kept"]))
    LOG.info(
        "%s: %d users with %d interactions prepared; %s rows of items that are not in the "
        "catalogue left out",
        *(place.name, data.num_users, interactions, unknown),
    )


def _source_hash(place: Place) -> str:
    """Hash of the file; read only when its size or time changed since the last time."""
    path, noted = place.interactions, place.state / "source.json"
    try:
        found = path.stat()
        now = [str(path), found.st_size, found.st_mtime_ns, found.st_ino]
        if path.is_file():
            try:
                known = json.loads(noted.read_text())
                if known["file"] == now:
                    return str(known["sha256"])
            except (OSError, ValueError, KeyError, TypeError):
                pass
        digest = source_hash(path)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read: {error.strerror or error}; is the file mounted there?"
        ) from None
    write_json(noted, {"file": now, "sha256": digest}, OWN)
    return digest


def _pointer(state: Path, run: str) -> Path:
    if not run.replace("-", "").isalnum():
        raise DataError("the server's run has no proper id")
    return state / "runs" / f"{run}.json"


def _forget_old_runs(state: Path) -> None:
    """Remove what only runs before the last `RUNS` used."""
    pointers = sorted((state / "runs").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for pointer in pointers[:-RUNS]:
        pointer.unlink(missing_ok=True)
    used = {json.loads(pointer.read_text())["data"] for pointer in pointers[-RUNS:]}
    for folder in (state / "prepared").iterdir():
        if folder.name not in used:
            shutil.rmtree(folder, ignore_errors=True)
