"""A prepared data set: train items, held-out items and candidates of every user, as flat arrays."""

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.arrays import ARRAYS, LISTS, Arrays, arrange, by_name
from fedrecgel.common.data.candidates import NUM_CANDIDATES
from fedrecgel.common.data.manifest import Manifest, arrays_hash, file_hash, read_manifest
from fedrecgel.common.data.split import TEST, TRAIN, VALIDATION
from fedrecgel.common.errors import DataError
from fedrecgel.common.hashing import Keys, user_keys

__all__ = ["Dataset", "by_name", "from_arrays", "make_dataset"]


@dataclass(frozen=True, eq=False)
class Dataset:
    """Interactions of ``N`` users with ``M`` items, split and ready; ids are opaque strings.

    Examples
    --------
    >>> data = make_dataset([[0, 1], [2]], validation=[2, 0], test=[3, 1], num_items=5)
    >>> data.num_users, data.num_items, data.train_of(0).tolist()
    (2, 5, [0, 1])
    """

    path: Path | None
    """The folder it was loaded from; None when it exists in memory only."""
    manifest: Manifest
    user_ids: NDArray[np.str_]
    """``(N,)``"""
    item_ids: NDArray[np.str_]
    """``(M,)`` the whole catalogue, also items that occur in no train set."""
    train_items: NDArray[np.int32]
    """``(T,)`` all train items, user after user, each user's in time order."""
    train_offsets: NDArray[np.int64]
    """``(N + 1,)`` user u's train items are ``train_items[train_offsets[u]:train_offsets[u + 1]]``.
    """
    validation_items: NDArray[np.int32]
    """``(N,)``, -1 where a user has none; the earliest of them where a user has several."""
    test_items: NDArray[np.int32]
    """``(N,)``, as ``validation_items``."""
    validation_candidates: NDArray[np.int32]
    """``(N, C)`` distinct never-interacted items; -1 at the end where there are fewer, and in the
    whole row of a user without validation item."""
    test_candidates: NDArray[np.int32]
    """``(N, C)``, as ``validation_candidates``."""
    validation_lists: NDArray[np.int32] | None = None
    """``(V,)`` where users may have several: all of them, user after user, in time order; else
    None, as the three below. Read them by `held_out`."""
    validation_list_offsets: NDArray[np.int64] | None = None
    """``(N + 1,)``, as ``train_offsets``."""
    test_lists: NDArray[np.int32] | None = None
    """``(W,)``"""
    test_list_offsets: NDArray[np.int64] | None = None
    """``(N + 1,)``"""

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = False) -> "Dataset":
        """Open a folder made by ``prepare``; arrays are mapped into memory, not read.

        ``verify`` also compares the contents of all files with the manifest (reads everything).
        """
        folder = Path(path)
        manifest = read_manifest(folder)
        several = manifest.split != "leave-one-out"
        names = (*ARRAYS, *LISTS) if several else ARRAYS
        arrays = {name: _load_array(folder, name, manifest) for name in names}
        data = cls(folder, manifest, **cast(Arrays, arrays))
        data._check_shapes()
        if verify:
            data.verify()
        return data

    @property
    def num_users(self) -> int:
        return len(self.user_ids)

    @property
    def num_items(self) -> int:
        return len(self.item_ids)

    @property
    def num_train(self) -> int:
        return len(self.train_items)

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def protocol(self) -> str:
        return self.manifest.protocol

    @property
    def hash(self) -> str:
        return self.manifest.hash

    @property
    def split(self) -> str:
        return self.manifest.split

    @property
    def several(self) -> bool:
        """Whether users may have several held-out items of a kind."""
        return self.test_lists is not None

    def held_out(self, split: str) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return all ``validation`` or ``test`` items and the offsets of each user's, as in train.

        Works for every split; under leave-one-out a user has one or none.
        """
        if split not in ("validation", "test"):
            raise DataError(f"unknown split {split!r}: use 'validation' or 'test'")
        items, offsets = getattr(self, f"{split}_lists"), getattr(self, f"{split}_list_offsets")
        if items is not None and offsets is not None:
            return items, offsets
        single = np.asarray(getattr(self, f"{split}_items"))
        there = single >= 0
        return single[there], np.concatenate([[0], np.cumsum(there)]).astype(np.int64)

    @cached_property
    def user_keys(self) -> Keys:
        """``(N,)`` keys from which everything random about a user is drawn."""
        return user_keys(str(i) for i in self.user_ids)

    @cached_property
    def train_counts(self) -> NDArray[np.int64]:
        """``(M,)`` how often each item occurs in train sets: its popularity."""
        return np.bincount(self.train_items, minlength=self.num_items)

    def train_of(self, user: int) -> NDArray[np.int32]:
        """Train items of one user, in time order."""
        return self.train_items[self.train_offsets[user] : self.train_offsets[user + 1]]

    def user_index(self, user_id: str) -> int:
        """Index of a user id."""
        return _look_up(self._user_positions, user_id, "user", self)

    def items_of(self, item_ids: Iterable[str]) -> NDArray[np.int32]:
        """Return indices of item ids; an unknown id is an error."""
        found = [_look_up(self._item_positions, i, "item", self) for i in item_ids]
        return np.array(found, dtype=np.int32)

    @cached_property
    def _user_positions(self) -> dict[str, int]:
        return {str(name): index for index, name in enumerate(self.user_ids)}

    @cached_property
    def _item_positions(self) -> dict[str, int]:
        return {str(name): index for index, name in enumerate(self.item_ids)}

    def arrays(self) -> Arrays:
        """All arrays by name."""
        names = (*ARRAYS, *LISTS) if self.several else ARRAYS
        return cast(Arrays, {name: getattr(self, name) for name in names})

    def verify(self) -> None:
        """Compare every file (or, in memory, the arrays) with the hashes of the manifest."""
        if self.path is not None:
            for name, expected in self.manifest.files.items():
                file = self.path / name
                if not file.is_file() or file_hash(file) != expected:
                    raise DataError(f"{file} is missing or changed; {_remake(self.manifest)}")
        if arrays_hash(by_name(self.arrays())) != self.hash:
            raise DataError(f"{self.path}: the arrays were changed; {_remake(self.manifest)}")

    def _check_shapes(self) -> None:
        users = self.num_users
        lengths = {"train_offsets": users + 1}
        for kind in ("validation", "test"):
            lengths |= {f"{kind}_items": users, f"{kind}_candidates": users}
            if self.several:
                lengths[f"{kind}_list_offsets"] = users + 1
        wrong = [name for name, length in lengths.items() if len(getattr(self, name)) != length]
        if not wrong and self.train_offsets[-1] != len(self.train_items):
            wrong = ["train_items"]
        for kind in ("validation", "test") if not wrong else ():
            items, offsets = self.held_out(kind)
            if offsets[-1] != len(items):
                wrong = [f"{kind}_lists"]
        if wrong:
            where = f"{self.path}/arrays/{wrong[0]}.npy" if self.path else wrong[0]
            raise DataError(f"{where} does not fit the other arrays; {_remake(self.manifest)}")


def make_dataset(
    train: Sequence[Sequence[int]],
    validation: Sequence[int] | Sequence[Sequence[int]],
    test: Sequence[int] | Sequence[Sequence[int]],
    num_items: int,
    seed: int = 0,
    *,
    num_candidates: int = NUM_CANDIDATES,
    user_ids: Sequence[str] | None = None,
) -> Dataset:
    """Build a small data set in memory from item indices.

    ``validation`` and ``test`` have an item for each user (-1: none), or a list for each user, as
    a split by time has them. Users are called u0, u1, ... unless ``user_ids`` names them, items
    i0, i1, ...
    """
    names = list(user_ids) if user_ids is not None else [f"u{u}" for u in range(len(train))]
    several = any(not isinstance(held, int | np.integer) for held in (*validation, *test))
    rows = [
        (user, item, part)
        for user in range(len(train))
        for part, lists in ((TRAIN, train), (VALIDATION, validation), (TEST, test))
        for item in np.atleast_1d(np.asarray(lists[user], dtype=np.int64)).tolist()
        if item >= 0
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    arrays = arrange(
        np.array(names, dtype=np.str_),
        np.array([f"i{i}" for i in range(num_items)], dtype=np.str_),
        user_keys(names),
        table[:, 0],
        table[:, 1],
        table[:, 2].astype(np.int8),
        seed,
        num_candidates,
        several=several,
    )
    split = "share" if several else "leave-one-out"
    return from_arrays(arrays, Manifest(name="memory", protocol="default", seed=seed, split=split))


def from_arrays(arrays: Arrays, manifest: Manifest) -> Dataset:
    """Return a data set in memory over ready arrays; its hash is computed here."""
    data = Dataset(None, replace(manifest, hash=arrays_hash(by_name(arrays))), **arrays)
    data._check_shapes()
    return data


def _load_array(folder: Path, name: str, manifest: Manifest) -> NDArray[np.generic]:
    file = folder / "arrays" / f"{name}.npy"
    try:
        array: NDArray[np.generic] = np.load(file, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise DataError(f"{file} is missing; {_remake(manifest)}") from None
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{file} is damaged ({error}); {_remake(manifest)}") from None
    return array


def _remake(manifest: Manifest) -> str:
    return f"remake it: {manifest.command}"


def _look_up(positions: dict[str, int], wanted: str, kind: str, data: Dataset) -> int:
    index = positions.get(str(wanted))
    if index is None:
        near = difflib.get_close_matches(str(wanted), list(positions)[:100_000], n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"ids look like {next(iter(positions))!r}"
        raise DataError(
            f"no {kind} {str(wanted)!r} among the {len(positions):,} {kind}s of {data.name}; {hint}"
        )
    return index
