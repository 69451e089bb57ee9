"""Read interactions of any origin: coded ids, times, and a report of what was seen."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.guess import Choice
from fedrecgel.common.data.ids import Coded, code_ids
from fedrecgel.common.data.manifest import file_hash
from fedrecgel.common.data.problems import Problems
from fedrecgel.common.data.split import Events
from fedrecgel.common.data.tables import Table, join_tables, read_table
from fedrecgel.common.data.values import Values, parse_numbers, parse_times
from fedrecgel.common.errors import ConfigError, DataError

SUFFIXES = (".csv", ".tsv", ".txt", ".dat", ".data", ".inter", ".parquet", ".pq")


@dataclass(frozen=True)
class Interactions:
    """Good rows of a source, in its order, and what was seen on the way."""

    events: Events
    user_ids: NDArray[np.str_]
    item_ids: NDArray[np.str_]
    report: dict[str, object]
    """rows_read, bad_rows, below_threshold, missing_times, and how the file was understood."""


def read_interactions(
    source: str | Path,
    *,
    user_column: str | int | None = None,
    item_column: str | int | None = None,
    time_column: str | int | None = None,
    rating_column: str | int | None = None,
    separator: str | None = None,
    header: bool | None = None,
    threshold: float | None = None,
    strict: bool = False,
) -> Interactions:
    """Read a CSV, TSV or Parquet file, or a folder of such parts.

    Parameters
    ----------
    source
        The file or folder.
    user_column, item_column, time_column, rating_column
        Names from the header, or positions from 1. What is not given is guessed by name or, in a
        file without header, by place: user, item, then a time and a rating by their values.
        ``none``: there is no such column.
    separator
        A character, ``::``, or one of comma, tab, semicolon, pipe, blanks; guessed if not given.
    header
        Whether line 1 holds names of columns; guessed if not given.
    threshold
        Only rows with at least this rating count.
    strict
        Refuse the file at its first bad row, instead of dropping and counting bad rows.
    """
    if threshold is not None and not np.isfinite(threshold):
        raise ConfigError(f"threshold is {threshold}; it must be a number")
    roles = {"user": user_column, "item": item_column, "time": time_column}
    choice = Choice({**roles, "rating": rating_column}, separator, header)
    problems = Problems(strict)
    parts = _parts(Path(source))
    tables = [read_table(path, choice, problems, k) for k, path in enumerate(parts)]
    sizes = [len(table.lines) for table in tables]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    table = join_tables(tables)
    columns = _Columns(table, threshold, Path(source))
    for reason, rows in columns.bad_rows().items():
        _record(problems, reason, rows, tables, table, starts)
    if problems.count * 2 > table.rows_read:
        raise DataError(
            f"{source}: {problems.count:,} of {table.rows_read:,} rows cannot be used; first"
            f" {problems.first_line()}; check --separator and --*-column (none: no such column)"
        )
    if not columns.kept.any():
        what = "" if threshold is None else f" with a rating of at least {threshold:g}"
        raise DataError(f"{source}: no usable row{what} among {table.rows_read:,}")
    report: dict[str, object] = {
        "rows_read": table.rows_read,
        "bad_rows": problems.to_report(),
        "below_threshold": int((columns.good & ~columns.positive).sum()),
        "users_without_positives": columns.users_without_positives(),
        "missing_times": int((columns.times.missing & columns.kept).sum()),
        "first_row": columns.first_row(),
        **_facts(tables),
    }
    return columns.interactions(report)


class _Columns:
    """The parsed columns of a table, and which of its rows are good."""

    def __init__(self, table: Table, threshold: float | None, source: Path) -> None:
        size = len(table.lines)
        self.table = table
        self.user: Coded = code_ids(table.columns["user"])
        self.item: Coded = code_ids(table.columns["item"])
        self.times = _all_missing(size)
        if "time" in table.columns:
            self.times = parse_times(table.columns["time"])
        self.ratings = _all_missing(size)
        if threshold is not None:
            if "rating" not in table.columns:
                raise DataError(f"{source}: a threshold needs ratings; set --rating-column")
            self.ratings = parse_numbers(table.columns["rating"])
        self._needs_rating = threshold is not None
        self.good = np.ones(size, dtype=bool)
        for rows in self.bad_rows().values():
            self.good[rows] = False
        self.positive = self.good.copy()
        if threshold is not None:
            self.positive &= self.ratings.numbers >= threshold
        self.kept = self.good & self.positive

    def bad_rows(self) -> dict[str, NDArray[np.int64]]:
        """Rows (positions in the table) by reason; each row has the first reason that holds."""
        reasons = {
            "user id is empty": self.user.codes == -1,
            "item id is empty": self.item.codes == -1,
            "user id is too long or holds a NUL byte": self.user.codes == -2,
            "item id is too long or holds a NUL byte": self.item.codes == -2,
            "time is neither a number nor a date": self.times.wrong,
        }
        if self._needs_rating:
            reasons["rating is not a number"] = self.ratings.wrong | self.ratings.missing
        found, seen = {}, np.zeros(len(self.table.lines), dtype=bool)
        for reason, mask in reasons.items():
            found[reason] = np.flatnonzero(mask & ~seen)
            seen |= mask
        return found

    def users_without_positives(self) -> int:
        everyone = len(np.unique(self.user.codes[self.good]))
        return everyone - len(np.unique(self.user.codes[self.kept]))

    def first_row(self) -> dict[str, str]:
        """Return the first kept row as it stands in the file, by role."""
        row = int(np.argmax(self.kept))
        return {role: column[row].as_py() for role, column in self.table.columns.items()}

    def interactions(self, report: dict[str, object]) -> Interactions:
        events = Events(self.user.codes, self.item.codes, self.times.numbers, ~self.times.missing)
        return Interactions(events.take(self.kept), self.user.ids, self.item.ids, report)


def _parts(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError(f"no file {str(source)!r}")
    parts = sorted(p for p in source.iterdir() if p.is_file() and p.suffix.lower() in SUFFIXES)
    if not parts:
        raise DataError(f"folder {source} has no files ending in {', '.join(SUFFIXES)}")
    return parts


def source_hash(source: Path) -> str:
    """sha256 of a file, or of the hashes of a folder's parts."""
    parts = _parts(source)
    if len(parts) == 1:
        return file_hash(parts[0])
    lines = "".join(f"{file_hash(part)}  {part.name}\n" for part in parts)
    return hashlib.sha256(lines.encode()).hexdigest()


def _all_missing(size: int) -> Values:
    return Values(np.zeros(size, np.int64), np.ones(size, bool), np.zeros(size, bool))


def _record(
    problems: Problems,
    reason: str,
    rows: NDArray[np.int64],
    tables: list[Table],
    table: Table,
    starts: NDArray[np.int64],
) -> None:
    def part_of(row: int) -> int:
        return int(np.searchsorted(starts, row, side="right")) - 1

    def place(row: int) -> tuple[int, int, str]:
        part, line = part_of(row), int(table.lines[row])
        return part, line, tables[part].name(line)

    def text(row: int) -> str:
        return tables[part_of(row)].text(int(table.lines[row]))

    problems.add(reason, rows.tolist(), place, text)


def _facts(tables: list[Table]) -> dict[str, object]:
    """How the first part was understood; counts and notes of all parts."""
    facts = dict(tables[0].facts)
    for key in ("blank_lines", "repeated_headers"):
        facts[key] = sum(int(str(table.facts[key])) for table in tables)
    notes = (table.facts["notes"] for table in tables)
    facts["notes"] = [note for part in notes if isinstance(part, list) for note in part]
    facts["parts"] = len(tables)
    return facts
