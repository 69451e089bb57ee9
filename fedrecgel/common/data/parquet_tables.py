"""A Parquet file to columns of strings, some row groups at a time."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from fedrecgel.common.data.guess import Choice, guess_columns
from fedrecgel.common.data.tables import Columns, Table
from fedrecgel.common.errors import DataError

_ROWS = 1_000_000


def read_parquet(path: Path, choice: Choice) -> Table:
    """Read the columns that are wanted; every row is a good one so far."""
    try:
        file = pq.ParquetFile(path)
        header = file.schema_arrow.names
        columns = guess_columns(header, len(header), [], str(path), choice.columns)
        names = {role: header[k] for role, k in columns.items()}
        collected, before = Columns(columns), 0
        for batch in file.iter_batches(_ROWS, columns=list(names.values())):
            values = {role: _as_strings(batch.column(n), n, path) for role, n in names.items()}
            collected.add(values, np.arange(before, before + batch.num_rows) + 1)
            before += batch.num_rows
    except (OSError, pa.ArrowException) as error:
        message = str(error).splitlines()[0]
        raise DataError(f"{path} is not a readable Parquet file: {message}") from None
    facts: dict[str, object] = {
        "format": "parquet",
        "encoding": "parquet",
        "separator": None,
        "header": header,
        "columns": names,
        "width": len(header),
        "blank_lines": 0,
        "repeated_headers": 0,
        "notes": [],
    }
    if "time" in names and _is_moment(file.schema_arrow.field(names["time"]).type):
        facts["time_type"] = str(file.schema_arrow.field(names["time"]).type)
    table = collected.columns()

    def texts(wanted: Sequence[int]) -> dict[int, str]:
        rows = np.array(wanted) - 1
        found = {role: column.take(pa.array(rows)).to_pylist() for role, column in table.items()}
        return {
            line: ", ".join(f"{role}={found[role][k]}" for role in found)
            for k, line in enumerate(wanted)
        }

    return Table(table, collected.lines(), before, f"{path} row", texts, facts)


def _is_moment(kind: pa.DataType) -> bool:
    return bool(pa.types.is_date(kind) or pa.types.is_timestamp(kind))


def _as_strings(values: pa.Array, name: str, path: Path) -> pa.Array:
    """Cast any simple column to strings: floats without a fraction, times to microseconds."""
    kind = values.type
    try:
        if pa.types.is_dictionary(kind):
            values = values.dictionary_decode()
        elif _is_moment(kind):
            values = values.cast(pa.timestamp("us"), safe=False).cast(pa.int64())
        elif pa.types.is_floating(kind):
            values = _whole_floats(values)
        return pc.fill_null(values.cast(pa.large_string()), "")
    except (pa.ArrowException, NotImplementedError):
        raise DataError(
            f"{path}: column {name!r} of type {kind} holds neither ids nor numbers; set --*-column"
        ) from None


def _whole_floats(values: pa.Array) -> pa.Array:
    values = pc.if_else(pc.is_nan(values), None, values)
    rounded = pc.all(pc.equal(pc.round(values), values)).as_py()
    largest = pc.max(pc.abs(values)).as_py() or 0.0
    return values.cast(pa.int64()) if rounded is not False and largest < 2.0**63 else values
