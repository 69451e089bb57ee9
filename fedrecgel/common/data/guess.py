"""Which separator, header and columns a text file has, judged by its first lines."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fedrecgel.common.errors import DataError

ROLES = ("user", "item", "time", "rating")
BLANKS = "blanks"
NONE = "none"
SEPARATORS = ("::", "\t", ";", "|", ",", BLANKS)
_MOST_LINES = 0.8
_NAMED = {"comma": ",", "tab": "\t", "\\t": "\t", "semicolon": ";", "pipe": "|", " ": BLANKS}
_NAMED |= {"blank": BLANKS, "space": BLANKS, "spaces": BLANKS, "colons": "::"}

_ALIASES = {
    "user": "user userid uid users usr userno customer customerid reviewerid visitorid member"
    " memberid account accountid person personid profileid client clientid",
    "item": "item itemid iid items movie movieid product productid asin parentasin artist artistid"
    " article articleid book bookid isbn song songid track trackid video videoid business"
    " businessid sku news newsid content contentid game gameid appid gmapid recipeid adid",
    "time": "time timestamp ts date datetime createdat created eventtime eventtimestamp when day"
    " timestampms reviewtime unixreviewtime unixtime unixtimestamp",
    "rating": "rating ratings score stars star rate overall weight value count plays playcount"
    " click",
}
_DATE = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


@dataclass(frozen=True)
class Choice:
    """What the user says about a file; None is guessed."""

    columns: Mapping[str, str | int | None]
    """By role: a name from the header or a position from 1; ``none`` for no such column."""
    separator: str | None = None
    header: bool | None = None


@dataclass(frozen=True)
class Layout:
    """How to read a file: separator, header and the position of each column."""

    separator: str
    header: tuple[str, ...] | None
    width: int
    columns: Mapping[str, int]
    """Position, from 0, of ``user``, ``item`` and, where there are, ``time`` and ``rating``."""
    notes: tuple[str, ...] = ()


def separator_named(text: str) -> str:
    """Translate what a user writes (``tab``, ``comma``, ``pipe``, ...) to a separator."""
    separator = _NAMED.get(text, text)
    if separator in ("", '"', "\n"):
        raise DataError(f"separator {text!r} cannot be used; try one of {', '.join(_NAMED)}")
    return separator


def reader(lines: Sequence[str], separator: str) -> Iterator[list[str]]:
    """Read lines by the rules of CSV; a misplaced or unclosed quote is a ``csv.Error``."""
    return csv.reader(lines, delimiter=separator, strict=True, skipinitialspace=True)


def fields_of(line: str, separator: str) -> list[str]:
    """Split one line."""
    if separator == BLANKS:
        return next(reader([re.sub(r"\s+", " ", line.strip(), flags=re.ASCII)], " "), [])
    if len(separator) > 1:
        return line.split(separator)
    return next(reader([line], separator), [])


def guess_layout(lines: Sequence[str], where: str, choice: Choice) -> Layout:
    """Judge by the first non-blank lines what the user has not chosen."""
    separator = choice.separator
    separator = separator_named(separator) if separator else guess_separator(lines, where)
    rows = [fields for line in lines if (fields := _try_fields(line, separator))]
    if not rows:
        raise DataError(
            f"{where}: no line can be split by {separator!r}, line 1 is {lines[0][:80]!r};"
            " set --separator"
        )
    wanted = choice.columns
    has_header = _has_header(rows, wanted) if choice.header is None else choice.header
    header = tuple(f.strip() for f in rows[0]) if has_header else None
    if header is None:
        width = Counter(len(row) for row in rows).most_common(1)[0][0]
    else:
        width = len(header)
    body = [row for row in rows[header is not None :] if len(row) == width]
    if width < 2:
        raise DataError(
            f"{where}: only one column with separator {separator!r}, line 1 is {lines[0][:80]!r};"
            " set --separator"
        )
    columns = guess_columns(header, width, body, where, wanted)
    notes = _unused_times(header, body, columns) if wanted.get("time") is None else ()
    return Layout(separator, header, width, columns, notes)


def guess_separator(lines: Sequence[str], where: str) -> str:
    """Choose the separator that gives the same number (2 or more) of fields in most lines.

    Of several good ones the first that shows names of users and items in line 1 is taken, else the
    first in the order of ``SEPARATORS``.
    """
    plain = [re.sub(r'"[^"]*"', "q", line) for line in lines]
    shares = {separator: _share_of_equal_widths(plain, separator) for separator in SEPARATORS}
    best = max(SEPARATORS, key=lambda separator: shares[separator])
    if shares[best] == 0.0:
        raise DataError(
            f"{where}: cannot tell the separator, line 1 is {lines[0][:80]!r}; set --separator"
        )
    good = [s for s in SEPARATORS if shares[s] >= min(_MOST_LINES, shares[best])]
    named = [s for s in good if _names_users_and_items(_try_fields(lines[0], s))]
    return (named or good)[0]


def _share_of_equal_widths(plain: Sequence[str], separator: str) -> float:
    splitter = None if separator == BLANKS else separator
    counts = Counter(len(line.split(splitter)) for line in plain)
    return max((hits for count, hits in counts.items() if count > 1), default=0) / len(plain)


def _names_users_and_items(header: Sequence[str]) -> bool:
    return all(_by_alias(role, header) is not None for role in ("user", "item"))


def guess_columns(
    header: Sequence[str] | None,
    width: int,
    body: Sequence[Sequence[str]],
    where: str,
    wanted: Mapping[str, str | int | None],
) -> dict[str, int]:
    """Find the position of each role: as wanted, else by name, else (no header) by place."""
    chosen = {
        role: _position(column, header, width, where)
        for role, column in wanted.items()
        if column is not None and column != NONE
    }
    unwanted = [role for role, column in wanted.items() if column == NONE]
    if header is not None:
        for role in ROLES:
            if role not in (*chosen, *unwanted) and (found := _by_alias(role, header)) is not None:
                chosen[role] = found
    else:
        _by_place(chosen, unwanted, width, body, where)
    for role in ("user", "item"):
        if role not in chosen:
            raise DataError(
                f"{where}: cannot tell which column holds the {role}s; the columns are"
                f" {', '.join(header or ())}; set --{role}-column, or --no-header if line 1 is data"
            )
    if len(set(chosen.values())) < len(chosen):
        raise DataError(f"{where}: two of {', '.join(chosen)} are the same column; set --*-column")
    return chosen


def _unused_times(
    header: Sequence[str] | None, body: Sequence[Sequence[str]], columns: Mapping[str, int]
) -> tuple[str, ...]:
    """Point at a column that looks like a time although its name does not say so."""
    if header is None or "time" in columns:
        return ()
    free = [k for k in range(len(header)) if k not in columns.values()]
    found = [header[k] for k in free if _looks_like_time([row[k].strip() for row in body])]
    return tuple(f"{name!r} looks like a time: --time-column {name!r} uses it" for name in found)


def _try_fields(line: str, separator: str) -> list[str]:
    try:
        return fields_of(line, separator)
    except csv.Error:
        return []


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.split(":")[0].lower())


def _by_alias(role: str, header: Sequence[str]) -> int | None:
    names = [_plain(name) for name in header]
    return next((names.index(alias) for alias in _ALIASES[role].split() if alias in names), None)


def _has_header(rows: Sequence[Sequence[str]], wanted: Mapping[str, str | int | None]) -> bool:
    first, rest = rows[0], [row for row in rows[1:] if len(row) == len(rows[0])]
    stripped = [f.strip() for f in first]
    names = [c for c in wanted.values() if isinstance(c, str) and c != NONE and not c.isdigit()]
    if any(name in stripped for name in names):
        return True
    if any(_by_alias(role, first) is not None for role in ("user", "item")):
        return True
    # A first line of words above a column of numbers (a few bad lines aside).
    return any(
        not _is_number(name)
        and name.strip() != ""
        and sum(_is_number(row[k]) for row in rest) >= max(0.9 * len(rest), 1)
        for k, name in enumerate(first)
    )


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text.strip()) is not None


def _position(column: str | int, header: Sequence[str] | None, width: int, where: str) -> int:
    if header is not None and isinstance(column, str) and column in header:
        return list(header).index(column)
    if str(column).isdigit() and 1 <= int(column) <= width:
        return int(column) - 1
    if header is None:
        raise DataError(
            f"{where}: no column {column!r}: no header; use a position from 1 to {width}"
        )
    raise DataError(f"{where}: no column {column!r}; the columns are {', '.join(header)}")


def _by_place(
    chosen: dict[str, int],
    unwanted: Sequence[str],
    width: int,
    body: Sequence[Sequence[str]],
    where: str,
) -> None:
    """Without header: user, item first; then the first column of times, then one of numbers."""
    free = [k for k in range(width) if k not in chosen.values()]
    for role in ("user", "item"):
        if role not in chosen and free:
            chosen[role] = free.pop(0)
            if body and all(_DATE.match(row[chosen[role]].strip()) for row in body):
                raise DataError(
                    f"{where}: column {chosen[role] + 1} holds dates, not {role}s;"
                    " set --user-column and --item-column (positions count from 1)"
                )
    for role, fits in (("time", _looks_like_time), ("rating", _looks_like_rating)):
        if role not in (*chosen, *unwanted):
            found = next((k for k in free if fits([row[k].strip() for row in body])), None)
            if found is not None:
                chosen[role] = found
                free.remove(found)


def _looks_like_time(values: Sequence[str]) -> bool:
    """Whether values are dates, or numbers of seconds since 1970 from 1973 on."""
    full = [v for v in values if v]
    return bool(full) and all(_DATE.match(v) or (_is_number(v) and float(v) >= 1e8) for v in full)


def _looks_like_rating(values: Sequence[str]) -> bool:
    full = [v for v in values if v]
    return bool(full) and all(_is_number(v) for v in full)
