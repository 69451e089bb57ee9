"""One file of any format to columns of strings: what follows knows no formats."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from fedrecgel.common.data.problems import SHOWN, Problems
from fedrecgel.common.errors import DataError

CODED = ("user", "item", "rating")
"""Columns kept as numbers into their distinct texts; times are mostly distinct anyway."""


@dataclass(frozen=True)
class Table:
    """Columns of strings, "" for missing, with the place of every row."""

    columns: dict[str, pa.ChunkedArray]
    """Of dictionary type for the roles in ``CODED``."""
    lines: NDArray[np.int64]
    """``(R,)`` line (text) or row (Parquet) number from 1."""
    rows_read: int
    """Rows with bad ones and repeated headers, without header and blank lines."""
    place: str
    """``FILE line`` or ``FILE row``: a number after it names a row in messages."""
    texts: Callable[[Sequence[int]], Mapping[int, str]]
    """The raw texts of some lines; reads the file again."""
    facts: dict[str, object]
    """Format, encoding, separator, header, columns, blank lines, repeated headers, notes."""

    def name(self, line: int) -> str:
        """How a line is called in messages."""
        return f"{self.place} {line}"


class Columns:
    """Collects the columns of a file, block after block."""

    def __init__(self, roles: Iterable[str]) -> None:
        self._chunks: dict[str, list[pa.Array]] = {role: [] for role in roles}
        self._lines: list[NDArray[np.int64]] = []

    def add(self, columns: Mapping[str, pa.Array], lines: NDArray[np.int64]) -> None:
        """Add the rows of one block."""
        for role, values in columns.items():
            coded = role in CODED and not pa.types.is_dictionary(values.type)
            self._chunks[role].append(values.dictionary_encode() if coded else values)
        self._lines.append(lines)

    def columns(self) -> dict[str, pa.ChunkedArray]:
        """Return what was added, under each other."""
        text = pa.large_string()
        coded = pa.dictionary(pa.int32(), text)
        return {
            role: pa.chunked_array(chunks, coded if role in CODED else text)
            for role, chunks in self._chunks.items()
        }

    def lines(self) -> NDArray[np.int64]:
        """Return the line of every row."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._lines])


def report_bad_lines(
    problems: Problems,
    bad: Mapping[str, NDArray[np.int64]],
    part: int,
    place: str,
    text: Callable[[int], str],
) -> int:
    """Hand over the bad lines of a block; their number is returned."""
    for reason, found in bad.items():
        first = [(part, line, f"{place} {line}", text(line)) for line in found[:SHOWN].tolist()]
        problems.add(reason, len(found), first)
    return sum(len(found) for found in bad.values())


def join_tables(tables: list[Table]) -> Table:
    """Put the parts of a data set under each other; they must have the same roles."""
    if len(tables) == 1:
        return tables[0]
    roles = set(tables[0].columns)
    for table in tables[1:]:
        if set(table.columns) != roles:
            raise DataError(
                f"the parts differ: {tables[0].name(1)} has the columns {sorted(roles)},"
                f" {table.name(1)} has {sorted(table.columns)}; set --*-column"
            )
    columns = {
        role: pa.chunked_array(
            [chunk for table in tables for chunk in table.columns[role].chunks],
            tables[0].columns[role].type,
        )
        for role in sorted(roles)
    }
    return replace(
        tables[0],
        columns=columns,
        lines=np.concatenate([t.lines for t in tables]),
        rows_read=sum(t.rows_read for t in tables),
    )
