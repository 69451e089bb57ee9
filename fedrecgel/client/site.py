"""A node's own side: which users it hosts, their interactions, and where their private state is."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from fedrecgel.client.store import ArrayStore, PrivateStore
from fedrecgel.common.algorithms.base import Algorithm
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.config import Config
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.manifest import MANIFEST
from fedrecgel.common.errors import ConfigError, DataError, FederationError
from fedrecgel.common.evaluation import HeldOut, held_out
from fedrecgel.common.greeting import Hello
from fedrecgel.common.interactions import Interactions, Ints
from fedrecgel.common.item_lists import ItemLists, join_lists
from fedrecgel.common.records import refuse_undeclared
from fedrecgel.common.requests import EvaluateRequest, Experiment, TrainRequest
from fedrecgel.common.state import State


@dataclass(frozen=True, eq=False)
class Site:
    """Users ``first .. last - 1`` of a prepared data set, as one node.

    Slots are the positions 0, 1, ... of the users that have something to train on.
    """

    publishes: ClassVar[bool] = False
    """Whether the model of a final test is kept here for serving; a run's folder has it anyway."""

    name: str
    data: Dataset
    first: int
    last: int
    state_folder: Path
    parts: int = 1

    @cached_property
    def users(self) -> Ints:
        """(U,) index in the data set of the user in each slot."""
        counts = np.diff(self.data.train_offsets[self.first : self.last + 1])
        return np.flatnonzero(counts > 0) + self.first

    @cached_property
    def interactions(self) -> Interactions:
        """Training interactions by slot, over the data's own memory where every user has some."""
        data, offsets = self.data, self.data.train_offsets[self.first : self.last + 1]
        if len(self.users) == self.last - self.first:
            items = data.train_items[offsets[0] : offsets[-1]]
            keys = data.user_keys[self.first : self.last]
            return Interactions(items, offsets - offsets[0], keys, data.num_items)
        everyone = Interactions(
            data.train_items, data.train_offsets, data.user_keys, data.num_items
        )
        return everyone.take(self.users)

    def training_data(self, slots: Ints, *, leaky: bool = False) -> Interactions:
        """What these users train on; ``leaky`` also tells the sampler their held-out items.

        Without it nothing of validation and test is within reach of an algorithm.
        """
        data = self.interactions.take(slots)
        if not leaky:
            return data
        parts = [ItemLists(*self.data.held_out(split)) for split in ("validation", "test")]
        barred = join_lists(*parts).select(self.users[slots])
        return replace(data, barred=(barred.items, np.asarray(barred.offsets, np.int64)))

    def held_out(self, split: str) -> HeldOut:
        """Held-out items of the users, by slot."""
        everyone = _held_out(self.data, split)
        return HeldOut(
            everyone.positives[self.users],
            everyone.candidates[self.users],
            everyone.excluded.select(self.users),
        )

    @property
    def catalogue(self) -> str:
        """Says to which items in which order the interactions refer."""
        return self.data.manifest.hash

    def hello(self) -> Hello:
        """What the server learns at the start."""
        validation, test = (
            int((items[self.users] >= 0).sum())
            for items in (self.data.validation_items, self.data.test_items)
        )
        users, items = len(self.users), self.data.num_items
        return Hello(self.name, users, items, self.catalogue, validation, self.parts, test)

    def store(self, experiment: Experiment, template: State) -> PrivateStore:
        """Private state of this experiment; the folder is shared by the sites of one machine."""
        return _open_store(
            self.state_folder, experiment.id, self.data.num_users, StateShape(template)
        )


class StateShape:
    """A state that hashes by its shapes, so that an open store can be found again."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._key = tuple((n, tuple(v.shape), str(v.dtype)) for n, v in sorted(state.items()))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateShape) and self._key == other._key


@lru_cache(maxsize=4)
def _open_store(folder: Path, experiment: str, num_users: int, shape: StateShape) -> ArrayStore:
    return ArrayStore(folder, experiment, num_users, shape.state)


def close_stores() -> None:
    """Let go of the stores of this process.

    One that is open keeps the disk space of its folder, even where that has been removed.
    """
    _open_store.cache_clear()


@lru_cache(maxsize=16)
def _held_out(data: Dataset, split: str) -> HeldOut:
    """Held-out items of all users of a data set, for all nodes of a process."""
    return held_out(data, split)


@lru_cache(maxsize=64)
def open_data(path: str, version: int) -> Dataset:
    """One data set for all nodes of a process; ``version`` is the folder's `data_version`."""
    return Dataset.load(path)


def data_version(folder: Path) -> int:
    """A number that changes when a prepared data set is made again in its place; 0 without one."""
    try:
        return (folder / MANIFEST).stat().st_mtime_ns
    except OSError:
        return 0


@lru_cache(maxsize=100_000)
def _open_site(path: str, version: int, part: int, parts: int, state_folder: str) -> Site:
    data = open_data(path, version)
    first, last = (data.num_users * p // parts for p in (part, part + 1))
    width = len(str(parts - 1))
    return Site(f"site-{part:0{width}d}", data, first, last, Path(state_folder), parts)


def open_site(node_config: Mapping[str, object], run_config: Mapping[str, object]) -> Site:
    """The site that a node's configuration names.

    The data set is ``data`` (node-config before run-config), the folder for private state
    ``state`` (else ``private`` in the run folder ``out``); ``partition-id`` and ``num-partitions``
    say which share of the users the node hosts. An empty string is as good as nothing.
    """
    values = {k: v for k, v in {**run_config, **node_config}.items() if v != ""}
    if "out" in values:
        values.setdefault("state", str(Path(str(values["out"])) / "private"))
    for key, example in (
        ("data", "/data/filmtrust"),
        ("state", "/state"),
        ("partition-id", 0),
        ("num-partitions", 1),
    ):
        if key not in values:
            own = (
                ", or for a file of its own: site, interactions and state" if key == "data" else ""
            )
            raise ConfigError(
                f"the node has no '{key}'; give it in --node-config, e.g. {key}={example!r}{own}"
            )
    part, parts = (_whole(key, values[key]) for key in ("partition-id", "num-partitions"))
    if not 0 <= part < parts:
        raise ConfigError(
            f"partition-id is {part} but num-partitions {parts}; ids run from 0 to {parts - 1}"
        )
    path = os.path.abspath(str(values["data"]))
    version = data_version(Path(path))
    if not version:
        raise DataError(
            f"{path} is not a prepared data set; "
            f"make one with: fedrecgel prepare SOURCE --out {path}"
        )
    return _open_site(path, version, part, parts, str(values["state"]))


def _whole(key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | str) or not str(value).isdigit():
        raise ConfigError(f"'{key}' must be a whole number, not {value!r}")
    return int(value)


@lru_cache(maxsize=8)
def _algorithm(key: str) -> Algorithm[Config]:
    experiment = Experiment.from_key(key)
    config = make_config(experiment.algorithm, experiment.settings)
    return make_algorithm(config, experiment.num_items)


def algorithm_of(request: TrainRequest | EvaluateRequest, site: Site) -> Algorithm[Config]:
    """The algorithm that a message asks for, made once per process.

    Raises
    ------
    FederationError
        When the message holds tensors that the algorithm does not declare, or is of another
        catalogue.
    """
    experiment = request.experiment
    if experiment.num_items != site.data.num_items:
        raise FederationError(
            f"{site.name} has a catalogue of {site.data.num_items} items, the server one of "
            f"{experiment.num_items}; prepare both from the same data"
        )
    if experiment.catalogue not in ("", site.catalogue):
        raise FederationError(
            f"{site.name} has another catalogue than the server; prepare both from the same data"
        )
    algorithm = _algorithm(experiment.key)
    refuse_undeclared(request.shared, algorithm.tensors.shared)
    refuse_undeclared(request.addressed, algorithm.tensors.addressed)
    return algorithm
