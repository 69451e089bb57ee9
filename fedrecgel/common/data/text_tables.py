"""Text with separators, and JSON lines, to columns of strings: block after block."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedrecgel.common.data.guess import (
    Choice,
    Layout,
    fields_of,
    guess_columns,
    guess_layout,
    separator_named,
)
from fedrecgel.common.data.json_lines import key_names, split_objects
from fedrecgel.common.data.lines import Rows, first_lines, split_lines, split_rows
from fedrecgel.common.data.problems import Problems
from fedrecgel.common.data.tables import Columns, Table, report_bad_lines
from fedrecgel.common.data.text_file import TextFile

Split = Callable[[pa.Array, bool], Rows]
"""Splits the lines of one block; the flag tells the last block."""


def read_separated(
    path: Path, choice: Choice, problems: Problems, part: int, like: Table | None = None
) -> Table:
    """Read a file of lines with separators.

    ``like`` is an earlier part of the same folder: a part without header has its columns.
    """
    file = TextFile(path)
    blocks = _line_blocks(file)
    lines, final = next(blocks)
    head = first_lines(lines)
    layout = _as_before(like, head) or guess_layout(head, str(path), choice)
    header = head[0] if layout.header is not None else None

    def split(block: pa.Array, last: bool) -> Rows:
        return split_rows(block, layout, header, last=last)

    names = layout.header or [f"column {k + 1}" for k in range(layout.width)]
    facts: dict[str, object] = {
        "format": "text",
        "encoding": file.encoding,
        "separator": layout.separator,
        "header": list(layout.header) if layout.header else None,
        "columns": {role: names[k] for role, k in layout.columns.items()},
        "width": layout.width,
        "notes": [*file.notes, *layout.notes],
    }
    table = _collect(
        file, _chain(lines, final, blocks), split, layout.columns, problems, part, facts
    )
    first = int(layout.header is not None)
    repeated = int(str(table.facts["headers"])) - first
    table.facts["repeated_headers"] = repeated
    return replace(table, rows_read=table.rows_read + repeated)


def _as_before(like: Table | None, head: Sequence[str]) -> Layout | None:
    """Layout of an earlier part, where this one has the same width and no header of its own."""
    if like is None or like.facts.get("format") != "text" or not like.facts["header"]:
        return None
    header = [str(name) for name in _list(like.facts["header"])]
    columns = like.facts["columns"]
    separator = separator_named(str(like.facts["separator"]))
    fields = fields_of(head[0], separator) if '"' not in head[0] else []
    if len(fields) != len(header) or not isinstance(columns, Mapping):
        return None
    if {f.strip() for f in fields} & set(header):
        return None
    places = {role: header.index(name) for role, name in columns.items()}
    return Layout(separator, None, len(header), places)


def read_json_lines(path: Path, choice: Choice, problems: Problems, part: int) -> Table:
    """Read a file with one JSON object a line; an absent key is a missing value."""
    file = TextFile(path)
    blocks = _line_blocks(file)
    lines, final = next(blocks)
    names = key_names(first_lines(lines), str(path))
    columns = guess_columns(names, len(names), [], str(path), choice.columns)
    keys = {role: names[k] for role, k in columns.items()}
    facts: dict[str, object] = {
        "format": "json",
        "encoding": file.encoding,
        "separator": None,
        "header": list(names),
        "columns": keys,
        "width": len(names),
        "notes": list(file.notes),
        "repeated_headers": 0,
    }

    def split(block: pa.Array, _: bool) -> Rows:
        return split_objects(block, keys)

    return _collect(file, _chain(lines, final, blocks), split, columns, problems, part, facts)


def _line_blocks(file: TextFile) -> Iterator[tuple[pa.Array, bool]]:
    """Yield the lines of each block, and whether it is the last one."""
    previous: bytes | None = None
    for data in file.blocks():
        if previous is not None:
            yield split_lines(previous), False
        previous = data
    assert previous is not None
    yield split_lines(previous), True


def _chain(
    lines: pa.Array, final: bool, blocks: Iterator[tuple[pa.Array, bool]]
) -> Iterator[tuple[pa.Array, bool]]:
    yield lines, final
    yield from blocks


def _collect(
    file: TextFile,
    blocks: Iterator[tuple[pa.Array, bool]],
    split: Split,
    roles: Mapping[str, int],
    problems: Problems,
    part: int,
    facts: dict[str, object],
) -> Table:
    collected, place = Columns(roles), f"{file.path} line"
    before = read = blank = headers = 0
    pending: pa.Array | None = None
    for lines, final in blocks:
        block = lines if pending is None else pa.concat_arrays([pending, lines])
        rows = split(block, final)
        bad = {reason: found + before for reason, found in rows.bad.items()}
        read += report_bad_lines(problems, bad, part, place, _text_of(block, before))
        read += len(rows.lines)
        collected.add(rows.columns, rows.lines + before)
        blank += rows.blank
        headers += rows.headers
        before += rows.rest
        pending = block.slice(rows.rest) if rows.rest < len(block) else None
    facts |= {"blank_lines": blank, "headers": headers}
    return Table(
        collected.columns(),
        collected.lines(),
        read,
        place,
        lambda wanted: _texts(file, wanted),
        facts,
    )


def _text_of(block: pa.Array, before: int) -> Callable[[int], str]:
    return lambda line: str(block[line - 1 - before].as_py())


def _texts(file: TextFile, wanted: Sequence[int]) -> dict[int, str]:
    """Read the file once more for the texts of some lines."""
    found: dict[int, str] = {}
    before, left = 0, sorted(wanted)
    for data in file.blocks():
        size = data.count(b"\n") + (not data.endswith(b"\n"))
        here = [line for line in left if line <= before + size]
        if here:
            lines = pc.take(split_lines(data), np.array(here) - 1 - before).to_pylist()
            found |= dict(zip(here, lines, strict=True))
        left, before = left[len(here) :], before + size
        if not left:
            break
    return found


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
