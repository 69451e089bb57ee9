"""Lines of text to columns of strings, with the number of the line each row came from.

Lines without quotes are split all at once. Lines with quotes go through the csv module one by one,
so that an unclosed quote spoils its own line and never swallows the rows below it; only where the
quoted text really goes on over several lines (a comment column, say) are these joined.
"""

import csv
import gc
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from fedrecgel.common.data.guess import BLANKS, Layout, fields_of, reader

_MOST_JOINED = 20
_LONGEST_JOIN = 10 * _MOST_JOINED
_MOST_FAILED_JOINS = 1_000
Record = tuple[int, int, list[str]]
"""First line and last line, from 0, and fields."""


@dataclass(frozen=True)
class Rows:
    """Good rows of a text file, in file order."""

    columns: dict[str, pa.Array]
    lines: NDArray[np.int64]
    """Line number, from 1, of every row."""
    bad: dict[str, NDArray[np.int64]]
    """Line numbers of rows that could not be split, by reason."""
    blank: int
    headers: int
    """Lines equal to the header, the first one included."""
    rest: int
    """Line, from 0, where a record begins that the block does not hold to its end."""


def split_lines(data: bytes) -> pa.Array:
    """Lines of UTF-8 text, without their ends."""
    whole = pa.array([data], type=pa.large_binary()).cast(pa.large_string())
    lines = pc.split_pattern(whole, "\n").flatten()
    return lines.slice(0, len(lines) - 1) if data.endswith(b"\n") else lines


def first_lines(lines: pa.Array, count: int = 200) -> list[str]:
    """Return the first non-blank lines."""
    head = lines.slice(0, 4 * count).to_pylist()
    return [line for line in head if line.strip(" \t\r\f\v")][:count]


def split_rows(
    lines: pa.Array, layout: Layout, header: str | None = None, *, last: bool = True
) -> Rows:
    """Split every line into the columns of the layout.

    ``header`` is the text of the header line, wherever it stands. Unless the block is the ``last``
    one, a quoted record that may go on in the next block is left for it.
    """
    with _without_collector():
        return _split_rows(lines, layout, header, last)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Millions of small lists and no cycles: the collector would cost a third of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _split_rows(lines: pa.Array, layout: Layout, header: str | None, last: bool) -> Rows:
    trimmed = pc.ascii_trim_whitespace(lines)
    blank = _mask(pc.equal(trimmed, ""))
    todo = ~blank
    headers = np.zeros(len(lines), dtype=bool)
    if header is not None:
        headers = _mask(pc.equal(trimmed, header.strip()))
        todo &= ~headers
    nul = todo & _mask(pc.match_substring(lines, "\x00"))
    todo &= ~nul
    has_quotes = len(layout.separator) == 1 or layout.separator == BLANKS
    quoted = todo & _mask(pc.match_substring(lines, '"')) & has_quotes
    if quoted.any() and layout.separator != BLANKS:
        lines, quoted = _drop_plain_quotes(lines, quoted, layout.separator)
    records, unclosed, wrong, rest = _split_quoted(lines, np.flatnonzero(quoted), layout, last)
    for first, end, _ in records:
        todo[first : end + 1] = False
    for mask in (todo, nul, blank, headers):
        mask[rest:] = False
    plain = np.flatnonzero(todo & ~quoted)
    rows = lines if len(plain) == len(lines) else lines.take(pa.array(plain))
    fields, offsets = _split_plain(rows, layout.separator)
    widths = np.diff(offsets)
    good = widths == layout.width
    where = np.concatenate([plain[good], np.array([r[0] for r in records], dtype=np.int64)])
    order = np.argsort(where, kind="stable")
    columns = {}
    for role, k in layout.columns.items():
        simple = fields.take(pa.array(offsets[:-1][good] + k))
        if records:
            special = pa.array([record[2][k] for record in records], type=pa.large_string())
            simple = pa.concat_arrays([simple, special]).take(pa.array(order))
        columns[role] = simple
    bad = {"NUL byte": np.flatnonzero(nul) + 1, "quote not closed or misplaced": unclosed + 1}
    ragged = dict(wrong)
    for width in np.unique(widths[~good]):
        found = plain[~good & (widths == width)]
        ragged[int(width)] = np.sort(np.concatenate([ragged.get(int(width), found[:0]), found]))
    for width, found in ragged.items():
        bad[f"{width} fields instead of {layout.width}"] = found + 1
    return Rows(columns, where[order] + 1, bad, int(blank.sum()), int(headers.sum()), rest)


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    return np.array(values.to_numpy(zero_copy_only=False), dtype=bool)


def _split_plain(lines: pa.Array, separator: str) -> tuple[pa.Array, NDArray[np.int64]]:
    if separator == BLANKS:
        split = pc.ascii_split_whitespace(pc.ascii_trim_whitespace(lines))
    else:
        split = pc.split_pattern(lines, separator)
    return split.flatten(), np.asarray(split.offsets.to_numpy(), dtype=np.int64)


def _drop_plain_quotes(
    lines: pa.Array, quoted: NDArray[np.bool_], separator: str
) -> tuple[pa.Array, NDArray[np.bool_]]:
    """Remove quotes that change nothing, for speed; return the lines and which still have some."""
    inside = f'[^"{re.escape(separator)}]*'
    field = f'("{inside}"|{inside})'
    pattern = f"^{field}({re.escape(separator)}{field})*$"
    needless = quoted & _mask(pc.match_substring_regex(lines, pattern))
    bare = pc.replace_substring(lines, '"', "")
    return pc.if_else(pa.array(needless), bare, lines), quoted & ~needless


def _split_quoted(
    lines: pa.Array, where: NDArray[np.int64], layout: Layout, last_block: bool
) -> tuple[list[Record], NDArray[np.int64], dict[int, NDArray[np.int64]], int]:
    """Split lines with quotes; give the records, the bad lines, and where the rest begins."""
    texts = lines.take(pa.array(where)).to_pylist()
    records: list[Record] = []
    rest = len(lines)
    unclosed: list[int] = []
    wrong: dict[int, list[int]] = {}
    if (alone := _each_alone(texts, layout.separator)) is not None:
        widths = np.array([len(fields) for fields in alone], dtype=np.int64)
        records = [
            (line, line, fields)
            for line, fields in zip(where.tolist(), alone, strict=True)
            if len(fields) == layout.width
        ]
        others = np.unique(widths[widths != layout.width])
        odd = {int(width): where[widths == width] for width in others}
        return records, where[:0], odd, rest
    done, failed = -1, 0
    for position, (line, text) in enumerate(zip(where.tolist(), texts, strict=True)):
        if line <= done:
            continue
        try:
            fields, last = fields_of(text, layout.separator), line
        except csv.Error:
            joined = None
            if failed < _MOST_FAILED_JOINS:
                joined = _join(lines, where[position:], layout)
            if joined is None and not last_block and line >= len(lines) - _LONGEST_JOIN:
                rest = line
                break
            if joined is None:
                failed += 1
                unclosed.append(line)
                continue
            fields, last = joined
        if len(fields) != layout.width:
            wrong.setdefault(len(fields), []).append(line)
            continue
        records.append((line, last, fields))
        done = last
    ragged = {width: np.array(found, dtype=np.int64) for width, found in wrong.items()}
    return records, np.array(unclosed, dtype=np.int64), ragged, rest


def _each_alone(texts: list[str], separator: str) -> list[list[str]] | None:
    """Read all lines in one go, for speed; None unless every line is a record of its own."""
    if separator == BLANKS or len(separator) > 1:
        return None
    try:
        rows = list(reader(texts, separator))
    except csv.Error:
        return None
    return rows if len(rows) == len(texts) else None


def _join(
    lines: pa.Array, where: NDArray[np.int64], layout: Layout
) -> tuple[list[str], int] | None:
    """Read a record that goes on over several lines; None where that gives no proper row."""
    if layout.separator == BLANKS:
        return None
    first = int(where[0])
    for last in where[1:_MOST_JOINED].tolist():
        if last - first > _LONGEST_JOIN:
            return None
        texts = lines.slice(first, last - first + 1).to_pylist()
        ends = [text + "\n" for text in texts[:-1]] + texts[-1:]
        try:
            rows = list(reader(ends, layout.separator))
        except csv.Error:
            continue
        if len(rows) != 1 or len(rows[0]) != layout.width:
            return None
        broken = any("\n" in rows[0][k] for k in layout.columns.values())
        return None if broken else (rows[0], last)
    return None
