"""One file, of text or Parquet, to columns of strings: what follows knows no formats."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedrecgel.common.data.encoding import read_text
from fedrecgel.common.data.guess import Choice, guess_columns, guess_layout
from fedrecgel.common.data.lines import first_lines, split_lines, split_rows
from fedrecgel.common.data.problems import Problems
from fedrecgel.common.errors import DataError


@dataclass(frozen=True)
class Table:
    """Columns of strings, "" for missing, with the place of every row."""

    columns: dict[str, pa.Array]
    lines: NDArray[np.int64]
    """``(R,)`` line (text) or row (Parquet) number from 1."""
    rows_read: int
    """Rows with bad ones and repeated headers, without header and blank lines."""
    name: Callable[[int], str]
    """How a line is called in messages."""
    text: Callable[[int], str]
    """The raw text of a line."""
    facts: dict[str, object]
    """Encoding, separator, header, columns, first row, blank lines, repeated headers, notes."""


def read_table(path: Path, choice: Choice, problems: Problems, part: int) -> Table:
    """Read one file; rows that cannot even be split go to ``problems``."""
    if path.suffix.lower() in (".parquet", ".pq"):
        return _read_parquet(path, choice)
    return _read_text(path, choice, problems, part)


def _read_text(path: Path, choice: Choice, problems: Problems, part: int) -> Table:
    text = read_text(path)
    lines = split_lines(text.data)
    layout = guess_layout(first_lines(lines), str(path), choice)
    rows = split_rows(lines, layout)

    def name(line: int) -> str:
        return f"{path} line {line}"

    def raw(line: int) -> str:
        return str(lines[line - 1].as_py())

    for reason, found in rows.bad.items():
        problems.add(reason, found.tolist(), lambda line: (part, line, name(line)), raw)
    bad = sum(len(found) for found in rows.bad.values())
    names = layout.header or [f"column {k + 1}" for k in range(layout.width)]
    facts: dict[str, object] = {
        "encoding": text.encoding,
        "separator": layout.separator,
        "header": list(layout.header) if layout.header else None,
        "columns": {role: names[k] for role, k in layout.columns.items()},
        "blank_lines": rows.blank,
        "repeated_headers": rows.repeated_headers,
        "notes": [*text.notes, *layout.notes],
    }
    read = len(rows.lines) + bad + rows.repeated_headers
    return Table(rows.columns, rows.lines, read, name, raw, facts)


def _read_parquet(path: Path, choice: Choice) -> Table:
    try:
        file = pq.ParquetFile(path)
        header = file.schema_arrow.names
        columns = guess_columns(header, len(header), [], str(path), choice.columns)
        table = file.read(columns=[header[k] for k in columns.values()])
    except (OSError, pa.ArrowException) as error:
        message = str(error).splitlines()[0]
        raise DataError(f"{path} is not a readable Parquet file: {message}") from None
    values = {role: _as_strings(table.column(header[k]), path) for role, k in columns.items()}
    facts: dict[str, object] = {
        "encoding": "parquet",
        "separator": None,
        "header": header,
        "columns": {role: header[k] for role, k in columns.items()},
        "blank_lines": 0,
        "repeated_headers": 0,
        "notes": [],
    }

    def raw(line: int) -> str:
        return ", ".join(f"{role}={column[line - 1].as_py()}" for role, column in values.items())

    lines = np.arange(1, table.num_rows + 1)
    return Table(values, lines, table.num_rows, lambda line: f"{path} row {line}", raw, facts)


def _as_strings(column: pa.Array, path: Path) -> pa.Array:
    """Cast any simple column to strings: whole floats without a fraction, times to a number."""
    values = column.combine_chunks()
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)
    kind = values.type
    try:
        if pa.types.is_dictionary(kind):
            values = values.dictionary_decode()
        elif pa.types.is_date(kind) or pa.types.is_timestamp(kind):
            values = values.cast(pa.timestamp("us")).cast(pa.int64())
        elif pa.types.is_floating(kind):
            values = _whole_floats(values)
        return pc.fill_null(values.cast(pa.large_string()), "")
    except (pa.ArrowException, NotImplementedError):
        raise DataError(f"{path}: a column of type {kind} holds neither ids nor numbers") from None


def _whole_floats(values: pa.Array) -> pa.Array:
    values = pc.if_else(pc.is_nan(values), None, values)
    rounded = pc.all(pc.equal(pc.round(values), values)).as_py()
    largest = pc.max(pc.abs(values)).as_py() or 0.0
    return values.cast(pa.int64()) if rounded is not False and largest < 2.0**63 else values


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
    columns = {role: pa.concat_arrays([t.columns[role] for t in tables]) for role in sorted(roles)}
    return replace(
        tables[0],
        columns=columns,
        lines=np.concatenate([t.lines for t in tables]),
        rows_read=sum(t.rows_read for t in tables),
    )
