"""Read interactions of any origin: coded ids, times, and a report of what was seen."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.files import parts_of, read_part, shown, stored
from fedrecgel.common.data.guess import Choice
from fedrecgel.common.data.ids import Coded, code_ids
from fedrecgel.common.data.problems import SHOWN, Problems
from fedrecgel.common.data.split import Events
from fedrecgel.common.data.tables import Table, join_tables
from fedrecgel.common.data.times import describe_times
from fedrecgel.common.data.values import Values, all_missing, parse_numbers, parse_times
from fedrecgel.common.errors import ConfigError, DataError


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
    most_bad: float = 0.5,
) -> Interactions:
    """Read a CSV, TSV, Parquet or JSON lines file, packed or not, or a folder of such parts.

    Parameters
    ----------
    source
        The file or folder; ``-`` for standard input.
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
    most_bad
        Share of bad rows from which the file is refused: then it is the reading that is wrong.
    """
    if threshold is not None and not np.isfinite(threshold):
        raise ConfigError(f"threshold is {threshold}; it must be a number")
    roles = {"user": user_column, "item": item_column, "time": time_column}
    choice = Choice({**roles, "rating": rating_column}, separator, header)
    with stored(source) as path:
        return _read(Path(path), choice, threshold, strict, most_bad)


def _read(
    source: Path, choice: Choice, threshold: float | None, strict: bool, most_bad: float
) -> Interactions:
    problems = Problems(strict, lambda text: shown(text, source))
    tables: list[Table] = []
    for number, path in enumerate(parts_of(source)):
        like = tables[0] if tables else None
        tables.append(read_part(path, choice, problems, number, like))
    facts, places, table = _facts(tables), _Places(tables), join_tables(tables)
    columns = _Columns(table, threshold, source)
    for reason, rows in columns.bad_rows().items():
        problems.add(reason, len(rows), places.first(rows))
    del tables
    if problems.count > most_bad * table.rows_read:
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
        **facts,
        **columns.rating_facts(),
    }
    interactions = columns.interactions(report)
    report["times"] = describe_times(
        interactions.events,
        columns.times.kind,
        facts.get("time_type"),
        lambda row: shown(places.name(int(np.flatnonzero(columns.kept)[row])), source),
    )
    return interactions


class _Columns:
    """The parsed columns of a table, and which of its rows are good."""

    def __init__(self, table: Table, threshold: float | None, source: Path) -> None:
        size = len(table.lines)
        self.table = table
        self.user: Coded = code_ids(table.columns["user"])
        self.item: Coded = code_ids(table.columns["item"])
        self.times: Values = all_missing(size)
        if "time" in table.columns:
            self.times = parse_times(table.columns["time"])
        self.ratings: Values = all_missing(size)
        if "rating" in table.columns:
            self.ratings = parse_numbers(table.columns["rating"])
        elif threshold is not None:
            raise DataError(f"{source}: a threshold needs ratings; set --rating-column")
        self._threshold = threshold
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
        if self._threshold is not None:
            reasons["rating is not a number"] = self.ratings.wrong | self.ratings.missing
        found, seen = {}, np.zeros(len(self.table.lines), dtype=bool)
        for reason, mask in reasons.items():
            found[reason] = np.flatnonzero(mask & ~seen)
            seen |= mask
        return found

    def users_without_positives(self) -> int:
        """Count users of good rows none of which reaches the threshold."""
        count = len(self.user.ids)
        everyone = np.bincount(self.user.codes[self.good], minlength=count) > 0
        return int(
            (everyone & (np.bincount(self.user.codes[self.kept], minlength=count) == 0)).sum()
        )

    def first_row(self) -> dict[str, str]:
        """Return the first kept row as it stands in the file, by role."""
        row = int(np.argmax(self.kept))
        return {role: column[row].as_py() for role, column in self.table.columns.items()}

    def rating_facts(self) -> dict[str, object]:
        """Say how many rows have which rating: the most frequent ones, and those of 0 or less."""
        there = self.good & ~self.ratings.missing & ~self.ratings.wrong
        if not there.any():
            return {}
        values, counts = np.unique(self.ratings.numbers[there], return_counts=True)
        most = np.sort(np.argsort(-counts, kind="stable")[:20])
        frequent = {f"{values[k]:g}": int(counts[k]) for k in most}
        zero_or_less = int((there & self.kept & (self.ratings.numbers <= 0)).sum())
        return {"ratings": frequent, "not_positive_kept": zero_or_less}

    def interactions(self, report: dict[str, object]) -> Interactions:
        """Return the kept rows."""
        timed = ~self.times.missing
        events = Events(self.user.codes, self.item.codes, self.times.numbers, timed)
        if not self.kept.all():
            events = events.take(self.kept)
        return Interactions(events, self.user.ids, self.item.ids, report)


class _Places:
    """Names and texts of the rows of joined tables."""

    def __init__(self, tables: list[Table]) -> None:
        self._tables = tables
        self._starts = np.cumsum([0, *(len(table.lines) for table in tables)])

    def _part(self, row: int) -> tuple[int, int]:
        part = int(np.searchsorted(self._starts, row, side="right")) - 1
        return part, int(self._tables[part].lines[row - self._starts[part]])

    def name(self, row: int) -> str:
        """How a row is called in messages."""
        part, line = self._part(row)
        return self._tables[part].name(line)

    def first(self, rows: NDArray[np.int64]) -> list[tuple[int, int, str, str]]:
        """Give number of the file, line, name and text of the first of some rows."""
        lines: dict[int, list[int]] = {}
        for row in rows[:SHOWN].tolist():
            part, line = self._part(row)
            lines.setdefault(part, []).append(line)
        return [
            (part, line, self._tables[part].name(line), text)
            for part, wanted in lines.items()
            for line, text in self._tables[part].texts(wanted).items()
        ]


def _facts(tables: list[Table]) -> dict[str, object]:
    """How the first part was understood; counts and notes of all parts."""
    facts = dict(tables[0].facts)
    for key in ("blank_lines", "repeated_headers"):
        facts[key] = sum(int(str(table.facts[key])) for table in tables)
    notes = (table.facts["notes"] for table in tables)
    facts["notes"] = [note for part in notes if isinstance(part, list) for note in part]
    facts["parts"] = len(tables)
    facts.pop("headers", None)
    return facts
