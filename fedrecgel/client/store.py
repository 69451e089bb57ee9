"""Private state of users on their node, each state under the round that produced it.

The server says in every request which rounds of a user are still needed: the one it accepted last,
and those that its best round and its checkpoints refer to. A state is overwritten only when none of
them names it. So a round whose reply was lost or refused is undone by loading the one before, a run
that was killed goes on from its last checkpoint, and the best round can be restored at the end.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from fedrecgel.client.lock import alone
from fedrecgel.common.errors import RunError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.state import State


class PrivateStore(Protocol):
    """Private tensors by user position and round. Round 0 is the initial state and never kept."""

    def trained(self, users: Ints, rounds: Ints) -> NDArray[np.bool_]:
        """(B,) who goes on from a kept state: not round 0, nor somebody who was forgotten."""

    def load(self, users: Ints, rounds: Ints) -> State:
        """States (B, ...) that these ``rounds`` (B,) produced, none of them 0.

        Raises
        ------
        RunError
            When a state is not there.
        """

    def save(self, users: Ints, kept: Ints, round: int, state: State) -> None:
        """Keep the states that ``round`` produced, and those of the rounds ``kept`` (K, B)."""

    def latest(self, users: Ints) -> Ints:
        """(B,) the latest round with a kept state; 0 = none."""

    def finish(self, users: Ints, rounds: Ints, ranks: Ints) -> None:
        """Note the chosen rounds (B,), and what the test found about each user.

        ``ranks`` is (B, `RANK_FIELDS`).
        """


RANK_FIELDS = 4 + 10
"""``greater`` and ``ties`` among the candidates, both in the catalogue, and the top ten."""

PLACES = 7
"""States of a user that can exist: six that a request may name, and the new one."""

EMPTY = -1


class ArrayStore:
    """`PrivateStore` in memory-mapped arrays of one folder (mode 0700, files 0600).

    Nodes of one machine may share a folder, each with users of its own: they write to disjoint
    places. ``rounds`` (`PLACES`, N) says what each of a user's places holds; it is cleared before a
    place is written and set afterwards, so a process that is killed leaves no half state behind.
    The lowest free place is taken: memory and disk are used only as far as states pile up.

    Parameters
    ----------
    num_users
        How many users the folder holds, ``N``.
    template
        One user's private state; gives names, shapes and types.
    create
        Begin anew where the folder is empty or another experiment's; else that is a `RunError`.
    """

    def __init__(
        self,
        folder: Path,
        experiment: str,
        num_users: int,
        template: State,
        *,
        create: bool = True,
    ) -> None:
        header = {
            "experiment": experiment,
            "num_users": num_users,
            "tensors": {n: [list(v.shape), str(v.dtype)] for n, v in sorted(template.items())},
        }
        if not create and _read_header(folder) != header:
            raise RunError(f"{folder} does not hold the private state of this run; run it again")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shapes = {name: (PLACES, num_users, *value.shape) for name, value in template.items()}
        types = {name: value.numpy().dtype for name, value in template.items()}
        whole = np.dtype(np.int64)
        for name, shape in {
            "rounds": (PLACES, num_users),
            "chosen": (num_users,),
            "ranks": (num_users, RANK_FIELDS),
        }.items():
            shapes[name], types[name] = shape, whole
        # Nodes of other processes may open the folder at the same moment.
        with alone(folder):
            if _read_header(folder) != header:
                _create(folder, header, shapes, types)
        self._arrays = {name: _open(folder, name) for name in template}
        whole_numbers = (_open(folder, name) for name in ("rounds", "chosen", "ranks"))
        self._rounds, self._chosen, self._ranks = (a.view(np.int64) for a in whole_numbers)

    def trained(self, users: Ints, rounds: Ints) -> NDArray[np.bool_]:
        """See `PrivateStore.trained`; nobody is forgotten here."""
        return rounds > 0

    def load(self, users: Ints, rounds: Ints) -> State:
        """See `PrivateStore.load`."""
        places = self._rounds[:, users] == rounds
        missing = int((~places.any(axis=0)).sum())
        if missing:
            raise RunError(
                f"private state of {missing} of {len(users)} users is not in the store for the "
                "round the server asks for; was the store replaced, or another run started on it?"
            )
        place = places.argmax(axis=0)
        return {name: torch.from_numpy(a[place, users]) for name, a in self._arrays.items()}

    def save(self, users: Ints, kept: Ints, round: int, state: State) -> None:
        """See `PrivateStore.save`."""
        held = self._rounds[:, users]
        needed = (held[:, None, :] == kept).any(axis=1) & (held > 0)
        # A round that is run again writes over its own first attempt.
        place = np.where(held == round, -1, needed).argmin(axis=0)
        assert not needed[place, np.arange(len(users))].any(), "more rounds kept than places"
        self._rounds[place, users] = EMPTY
        for name, array in self._arrays.items():
            array[place, users] = state[name].numpy()
        self._rounds[place, users] = round

    def latest(self, users: Ints) -> Ints:
        """See `PrivateStore.latest`."""
        return np.asarray(np.maximum(self._rounds[:, users].max(axis=0), 0))

    def finish(self, users: Ints, rounds: Ints, ranks: Ints) -> None:
        """See `PrivateStore.finish`."""
        self._chosen[users] = rounds
        self._ranks[users] = ranks

    def chosen(self, users: Ints) -> Ints:
        """(B,) the chosen round of each user; 0 or less = never trained."""
        return np.array(self._chosen[users])

    def load_chosen(self, users: Ints) -> tuple[State, NDArray[np.bool_]]:
        """States of the chosen round, of those users that had been trained, and which they were."""
        rounds = self.chosen(users)
        found = rounds > 0
        return self.load(users[found], rounds[found]), found


def load_ranks(folder: Path) -> Ints:
    """(N, `RANK_FIELDS`) what the last test found about each user; -1 where there is nothing."""
    return np.array(np.load(folder / "ranks.npy", mmap_mode="r"))


def _open(folder: Path, name: str) -> NDArray[np.generic]:
    try:
        array: NDArray[np.generic] = np.load(folder / f"{name}.npy", mmap_mode="r+")
    except (OSError, ValueError, EOFError) as error:
        raise RunError(f"{folder / name}.npy is missing or damaged ({error}); run again") from None
    return array


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
        if name in ("rounds", "chosen", "ranks"):
            array[:] = EMPTY
        array.flush()
    path = folder / "store.json"
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))
    path.write_text(json.dumps(header))
