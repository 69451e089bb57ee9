"""Private state of users on their node: the last two rounds and two snapshots of each user.

A user's state is kept under the round that produced it. The server says in every request which
round it accepted last for each user, so a round whose reply was lost or refused is undone by
loading the one before. Snapshots keep the state of all users at an evaluated round, so that the
best can be restored at the end.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedrecgel.common.errors import RunError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.state import State


class PrivateStore(Protocol):
    """Private tensors by user position. ``rounds`` (B,) are accepted rounds; 0 means none."""

    def load(self, users: Ints, rounds: Ints) -> State:
        """States (B, ...) of users whose round is not 0.

        Raises
        ------
        RunError
            When a state is not there.
        """

    def save(self, users: Ints, accepted: Ints, round: int, state: State) -> None:
        """Keep the states that ``round`` produced, beside the accepted ones."""

    def snapshot(self, users: Ints, accepted: Ints, tag: int, keep: int) -> None:
        """Keep the accepted states of all these users under ``tag``, dropping tags but ``keep``."""

    def load_snapshot(self, users: Ints, tag: int) -> tuple[State, NDArray[np.bool_]]:
        """States of those users that had one at the snapshot, and which they were."""

    def keep_ranks(self, users: Ints, ranks: Ints) -> None:
        """Keep what the last test found out about each user, ``ranks`` (B, `RANK_FIELDS`)."""


RANK_FIELDS = 4 + 10
"""``greater`` and ``ties`` among the candidates, both in the catalogue, and the top ten."""

LIVE = (0, 1)
SNAPSHOTS = (2, 3)
EMPTY = -1


class ArrayStore:
    """`PrivateStore` in memory-mapped arrays of one folder (mode 0700, files 0600).

    Nodes of one machine may share a folder, each with users of its own: they write to disjoint
    places. ``rounds`` (4, N) says what each of a user's four places holds; a place is written
    before its round is, and its old round is cleared first.

    Parameters
    ----------
    num_users
        How many users the folder holds, ``N``.
    template
        One user's private state; gives names, shapes and types.
    """

    def __init__(self, folder: Path, experiment: str, num_users: int, template: State) -> None:
        self._arrays: dict[str, NDArray[np.generic]] = {}
        header = {
            "experiment": experiment,
            "num_users": num_users,
            "tensors": {n: [list(v.shape), str(v.dtype)] for n, v in sorted(template.items())},
        }
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shapes = {name: (4, num_users, *value.shape) for name, value in template.items()}
        types = {name: value.numpy().dtype for name, value in template.items()}
        fresh = _read_header(folder) != header
        if fresh:
            whole = np.dtype(np.int64)
            _create(
                folder,
                header,
                {**shapes, "rounds": (4, num_users), "ranks": (num_users, RANK_FIELDS)},
                {**types, "rounds": whole, "ranks": whole},
            )
        for name in template:
            self._arrays[name] = np.load(folder / f"{name}.npy", mmap_mode="r+")
        self._ranks: NDArray[np.int64] = np.load(folder / "ranks.npy", mmap_mode="r+")
        self._rounds: NDArray[np.int64] = np.load(folder / "rounds.npy", mmap_mode="r+")

    def load(self, users: Ints, rounds: Ints) -> State:
        """See `PrivateStore.load`."""
        places = np.stack([self._rounds[place, users] == rounds for place in LIVE])
        missing = int((~places.any(0)).sum())
        if missing:
            raise RunError(
                f"private state of {missing} of {len(users)} users is not in the store for the "
                "round the server asks for; was the store replaced, or another run started on it?"
            )
        return self._read(places.argmax(0), users)

    def save(self, users: Ints, accepted: Ints, round: int, state: State) -> None:
        """See `PrivateStore.save`."""
        # The place that does not hold the accepted state; place 0 for a first round.
        place = np.where(
            self._rounds[0, users] == np.where(accepted == 0, EMPTY - 1, accepted), 1, 0
        )
        self._rounds[place, users] = EMPTY
        for name, array in self._arrays.items():
            array[place, users] = state[name].numpy()
        self._rounds[place, users] = round

    def snapshot(self, users: Ints, accepted: Ints, tag: int, keep: int) -> None:
        """See `PrivateStore.snapshot`."""
        trained = users[accepted > 0]
        held = [keep != EMPTY and bool((self._rounds[p, users] == keep).any()) for p in SNAPSHOTS]
        place = SNAPSHOTS[held.index(False)]
        self._rounds[place, users] = EMPTY
        state = self.load(trained, accepted[accepted > 0])
        for name, array in self._arrays.items():
            array[place, trained] = state[name].numpy()
        self._rounds[place, trained] = tag

    def load_snapshot(self, users: Ints, tag: int) -> tuple[State, NDArray[np.bool_]]:
        """See `PrivateStore.load_snapshot`."""
        places = np.stack([self._rounds[place, users] == tag for place in SNAPSHOTS])
        found = np.asarray(places.any(axis=0))
        return self._read(places.argmax(0)[found] + SNAPSHOTS[0], users[found]), found

    def keep_ranks(self, users: Ints, ranks: Ints) -> None:
        """See `PrivateStore.keep_ranks`."""
        self._ranks[users] = ranks

    def _read(self, places: Ints, users: Ints) -> State:
        return {name: torch.from_numpy(a[places, users]) for name, a in self._arrays.items()}


def load_ranks(folder: Path) -> Ints:
    """(N, `RANK_FIELDS`) what the last test found about each user; -1 where there is nothing."""
    return np.array(np.load(folder / "ranks.npy", mmap_mode="r"))


def _read_header(folder: Path) -> object:
    try:
        return json.loads((folder / "store.json").read_text())
    except (OSError, ValueError):
        return None


def _create(
    folder: Path,
    header: Mapping[str, object],
    shapes: Mapping[str, tuple[int, ...]],
    types: Mapping[str, "np.dtype[np.generic]"],
) -> None:
    """Empty arrays; disk and memory are taken only where users are written."""
    for name, shape in shapes.items():
        path = folder / f"{name}.npy"
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
        array = np.lib.format.open_memmap(path, mode="w+", dtype=types[name], shape=shape)
        if name in ("rounds", "ranks"):
            array[:] = EMPTY
        array.flush()
    path = folder / "store.json"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    path.write_text(json.dumps(header))
