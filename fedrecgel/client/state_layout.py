"""One user's tensors as a row of bytes."""

import json
import math
import re
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from fedrecgel.common.state import State

_KIND = re.compile(r"<f[248]|<i[248]|\|[iub]1")
_LARGEST = 1 << 31
"""Bytes of a row, more than SQLite takes."""


class StateLayout:
    """Where each tensor of one user's state stands in its bytes.

    Parameters
    ----------
    tensors
        Name to shape and numpy type (``<f4``).
    """

    def __init__(self, tensors: dict[str, tuple[tuple[int, ...], str]]) -> None:
        self._tensors = {name: tensors[name] for name in sorted(tensors)}
        sizes = [
            int(np.prod(shape, dtype=np.int64)) * np.dtype(kind).itemsize
            for shape, kind in self._tensors.values()
        ]
        self._ends = np.cumsum([0, *sizes])
        self.size = int(self._ends[-1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StateLayout) and self._tensors == other._tensors

    def __hash__(self) -> int:
        return hash(self.to_text())

    def to_text(self) -> str:
        """The header in the file."""
        return json.dumps({n: [list(shape), kind] for n, (shape, kind) in self._tensors.items()})

    @classmethod
    def from_text(cls, text: str) -> "StateLayout":
        """The layout of a header; `ValueError` when it is none."""
        found = json.loads(text)
        if not isinstance(found, dict) or not all(map(_is_tensor, found.values())):
            raise ValueError("no header")
        "".join(found).encode()  # half a character can stand in JSON and nowhere else
        return cls({name: (tuple(shape), kind) for name, (shape, kind) in found.items()})

    def pack(self, state: State, users: int) -> NDArray[np.uint8]:
        """(users, size) bytes of the states (users, ...)."""
        rows = np.empty((users, self.size), dtype=np.uint8)
        for (name, (shape, kind)), start, end in self._places():
            array = state[name].numpy()
            assert array.shape == (users, *shape), f"{name} is of another shape"
            assert array.dtype.str == kind, f"{name} is of another type"
            rows[:, start:end] = (
                np.ascontiguousarray(array).view(np.uint8).reshape(users, end - start)
            )
        return rows

    def unpack(self, rows: NDArray[np.uint8]) -> State:
        """States (B, ...) of bytes (B, size)."""
        state = {}
        for (name, (shape, kind)), start, end in self._places():
            flat = np.ascontiguousarray(rows[:, start:end]).reshape(-1).view(kind)
            state[name] = torch.from_numpy(flat.reshape(len(rows), *shape))
        return state

    def _places(self) -> Iterator[tuple[tuple[str, tuple[tuple[int, ...], str]], int, int]]:
        ends = self._ends.tolist()
        return zip(self._tensors.items(), ends[:-1], ends[1:], strict=True)


def _is_tensor(value: object) -> bool:
    """Whether it is ``[[2, 3], "<f4"]`` or the like."""
    match value:
        case [list(shape), str(kind)]:
            sizes = all(type(n) is int and n >= 0 for n in shape)
            return bool(sizes and math.prod(shape) < _LARGEST and _KIND.fullmatch(kind))
    return False
