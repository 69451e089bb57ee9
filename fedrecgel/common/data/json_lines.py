"""One JSON object a line to columns of strings.

A block is parsed by pyarrow where it gives every key one plain type; else (a broken line, numbers
beside strings, whole numbers beside fractions) line by line, so that no id changes on the way.
"""

import json
from collections.abc import Mapping, Sequence
from io import BytesIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from numpy.typing import NDArray

from fedrecgel.common.data.lines import Rows
from fedrecgel.common.errors import DataError

_NO_OBJECT = "not a JSON object"
_NESTED = "a value is a list or an object"


def key_names(lines: Sequence[str], where: str) -> list[str]:
    """Return the keys of the first objects, in the order of their appearance."""
    names: dict[str, None] = {}
    for line in lines:
        names.update(dict.fromkeys(_object(line) or {}))
    if not names:
        hint = "a JSON array: write one object a line" if lines[0].lstrip()[:1] == "[" else ""
        raise DataError(
            f"{where}: line 1 is {hint or 'no JSON object'}: {lines[0][:80]!r}; JSON lines hold one"
            " object a line"
        )
    return list(names)


def split_objects(lines: pa.Array, keys: Mapping[str, str]) -> Rows:
    """Read the values of some keys, given by role, from every line."""
    trimmed = pc.ascii_trim_whitespace(lines)
    blank = np.array(pc.equal(trimmed, "").to_numpy(zero_copy_only=False), dtype=bool)
    full = np.flatnonzero(~blank)
    columns = _parse(lines, len(full), keys)
    if columns is not None:
        return Rows(columns, full + 1, {}, int(blank.sum()), 0, len(lines))
    texts: dict[str, list[str]] = {role: [] for role in keys}
    good: list[int] = []
    bad: dict[str, list[int]] = {}
    for line in full.tolist():
        values = _object(lines[line].as_py())
        row = [] if values is None else [_text(values.get(key)) for key in keys.values()]
        if values is None or None in row:
            bad.setdefault(_NO_OBJECT if values is None else _NESTED, []).append(line)
            continue
        good.append(line)
        for role, text in zip(keys, row, strict=True):
            texts[role].append(text or "")
    return Rows(
        {role: pa.array(values, type=pa.large_string()) for role, values in texts.items()},
        np.array(good, dtype=np.int64) + 1,
        {reason: _numbers(found) + 1 for reason, found in bad.items()},
        int(blank.sum()),
        0,
        len(lines),
    )


def _parse(lines: pa.Array, count: int, keys: Mapping[str, str]) -> dict[str, pa.Array] | None:
    """Parse all lines at once; None where that might change a value."""
    if not count:
        return None
    content = "\n".join(lines.to_pylist()).encode()
    table = _read(content, {})
    moments = [
        (key, pa.string())
        for key in keys.values()
        if table
        and key in table.column_names
        and pa.types.is_timestamp(table.schema.field(key).type)
    ]
    if moments:
        # pyarrow took text for moments; what is written counts.
        table = _read(content, dict(moments))
    if table is None or table.num_rows != count:
        return None
    columns = {}
    for role, key in keys.items():
        if key not in table.column_names:
            columns[role] = pa.nulls(count, pa.large_string())
            continue
        values = table.column(key).combine_chunks()
        kind = values.type
        plain = pa.types.is_int64(kind) or pa.types.is_string(kind) or pa.types.is_null(kind)
        if not plain and (role in ("user", "item") or not pa.types.is_float64(kind)):
            return None
        columns[role] = values.cast(pa.large_string())
    return {role: pc.fill_null(values, "") for role, values in columns.items()}


def _read(content: bytes, kinds: Mapping[str, pa.DataType]) -> pa.Table | None:
    try:
        return pj.read_json(
            BytesIO(content),
            pj.ReadOptions(use_threads=False, block_size=2**30),
            pj.ParseOptions(explicit_schema=pa.schema(list(kinds.items()))),
        )
    except (pa.ArrowException, OSError):
        return None


def _object(line: str) -> dict[str, object] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _text(value: object) -> str | None:
    """Write a value as text, "" for null; None for lists and objects."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else None


def _numbers(values: list[int]) -> NDArray[np.int64]:
    return np.array(values, dtype=np.int64)
