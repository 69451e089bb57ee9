"""Ids of users and items: opaque strings, only the empty one is missing."""

import re
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

LONGEST = 256
"""Longer ids are bad rows: they come from broken quoting, and fixed-width arrays hold all ids (that
is why NUL is no part of an id either)."""
_WHOLE = re.compile(r"([+-]?\d+)(\.0*)?")


@dataclass(frozen=True)
class Coded:
    """A column of ids as numbers into the sorted distinct ids; -1 missing, -2 not usable."""

    codes: NDArray[np.int64]
    ids: NDArray[np.str_]


def code_ids(column: pa.ChunkedArray) -> Coded:
    """Give numbers to the ids of a column of strings, of dictionary type.

    Blanks around an id do not count. Where every id of the column is a whole number, ``12.0`` is
    ``12``; otherwise ids are left as they are (``007`` is not ``7``; ``NA`` and ``null`` are ids).
    Ids are sorted as numbers where all are whole numbers, else as text.
    """
    if not column.num_chunks:
        return Coded(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.str_))
    chunks = column.unify_dictionaries().chunks
    raw = [text.strip() for text in chunks[0].dictionary.to_pylist()]
    names, numeric = _without_fractions(raw)
    distinct = sorted(
        {name for name in names if name and len(name) <= LONGEST and "\x00" not in name},
        key=(lambda name: (int(name), name)) if numeric else None,
    )
    position = {name: index for index, name in enumerate(distinct)}
    missing = {"": -1}
    table = np.array([missing.get(n, position.get(n, -2)) for n in names], dtype=np.int64)
    parts = [table[np.asarray(chunk.indices)] for chunk in chunks if len(chunk)]
    codes = np.concatenate([np.empty(0, dtype=np.int64), *parts])
    return Coded(codes, np.array(distinct, dtype=np.str_))


def _without_fractions(raw: list[str]) -> tuple[list[str], bool]:
    """Cut ``.0`` off where all ids are whole numbers; tell whether they are."""
    matches = [_WHOLE.fullmatch(name) for name in raw]
    if not all(match or not name for match, name in zip(matches, raw, strict=True)):
        return raw, False
    # Python refuses to convert numbers of thousands of digits; such ids are too long anyway.
    numeric = all(len(name) <= LONGEST for name in raw)
    return [
        match.group(1) if match else name for match, name in zip(matches, raw, strict=True)
    ], numeric
