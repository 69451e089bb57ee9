"""Columns of text to times and ratings."""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_WHOLE = r"^[+-]?([0-9]{1,18}|[0-8][0-9]{18})$"
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_DATE = r"^[0-9]{4}"


@dataclass(frozen=True)
class Values:
    """Numbers of a column; ``missing`` where the field is empty, ``wrong`` where it is no value."""

    numbers: NDArray[np.int64] | NDArray[np.float64]
    missing: NDArray[np.bool_]
    wrong: NDArray[np.bool_]
    kind: str = "number"
    """``whole``, ``number`` or ``date`` (nanoseconds since 1970, UTC)."""


def all_missing(size: int) -> Values:
    """Return the values of a column that is not there."""
    return Values(np.zeros(size, np.int64), np.ones(size, bool), np.zeros(size, bool))


def parse_times(column: pa.ChunkedArray) -> Values:
    """Read times: whole numbers exactly, other numbers, or dates (as nanoseconds, UTC).

    A column has one kind, the one of most of its values; values of another kind are wrong.
    """
    texts = [pc.utf8_trim_whitespace(chunk) for chunk in column.chunks]
    missing = _masks([pc.equal(text, "") for text in texts])
    whole = _masks([pc.match_substring_regex(text, _WHOLE) for text in texts])
    if (whole | missing).all():
        return Values(
            _join([_integers(text) for text in texts]), missing, ~missing & ~whole, "whole"
        )
    number = whole | _masks([pc.match_substring_regex(text, _NUMBER) for text in texts])
    full = int((~missing).sum())
    if int((~number & ~missing).sum()) * 2 < full:
        if (number == whole).all():
            numbers = _join([_integers(text) for text in texts])
            return Values(numbers, missing, ~whole & ~missing, "whole")
        return _finite(_join([_floats(text) for text in texts]), missing, ~number & ~missing)
    known, stamps = zip(*(_dates(text) for text in texts), strict=True)
    if int(_join(known).sum()) * 2 >= full:
        return Values(_join(stamps), missing, ~_join(known) & ~missing, "date")
    return _finite(_join([_floats(text) for text in texts]), missing, ~number & ~missing)


def parse_numbers(column: pa.ChunkedArray) -> Values:
    """Read finite numbers from a column of dictionary type."""
    if not column.num_chunks:
        return all_missing(0)
    chunks = column.unify_dictionaries().chunks
    text = pc.utf8_trim_whitespace(chunks[0].dictionary)
    missing = _mask(pc.equal(text, ""))
    number = _mask(pc.match_substring_regex(text, _NUMBER))
    distinct = _finite(_floats(text), missing, ~number & ~missing)
    at = np.concatenate([np.asarray(chunk.indices) for chunk in chunks])
    return Values(distinct.numbers[at], distinct.missing[at], distinct.wrong[at])


def _finite(
    numbers: NDArray[np.float64], missing: NDArray[np.bool_], wrong: NDArray[np.bool_]
) -> Values:
    wrong = wrong | (~np.isfinite(numbers) & ~missing)
    return Values(np.where(missing | wrong, 0.0, numbers), missing, wrong)


def _integers(text: pa.Array) -> NDArray[np.int64]:
    """Convert whole numbers; 0 for everything else."""
    try:
        return np.asarray(text.cast(pa.int64()))
    except pa.ArrowInvalid:
        whole = pc.match_substring_regex(text, _WHOLE)
        digits = pc.replace_substring_regex(pc.if_else(whole, text, "0"), r"^\+", "")
        return np.asarray(digits.cast(pa.int64()))


def _floats(text: pa.Array) -> NDArray[np.float64]:
    """Convert numbers; 0 for everything else, infinity for what is too large."""
    numbers = pc.if_else(pc.match_substring_regex(text, _NUMBER), text, "0")
    return np.asarray(numbers.cast(pa.float64()))


def _dates(text: pa.Array) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Convert dates to nanoseconds; where one is none, pandas looks at each of the block."""
    for kind in (pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            stamps = text.cast(kind).cast(pa.int64())
        except pa.ArrowInvalid:
            continue
        return np.ones(len(text), dtype=bool), np.asarray(stamps)
    # pandas also takes "now" and "today" for dates.
    dates = pc.if_else(pc.match_substring_regex(text, _DATE), text, None)
    import pandas as pd  # half a second, which processes that read no dates can do without

    parsed = pd.to_datetime(
        pd.Series(dates.to_pylist(), dtype=object), format="ISO8601", utc=True, errors="coerce"
    )
    known = parsed.notna().to_numpy(dtype=bool)
    nanoseconds = parsed.dt.as_unit("ns").astype("int64").to_numpy(dtype=np.int64)
    return known, np.where(known, nanoseconds, 0)


def _join(parts: "list[NDArray] | tuple[NDArray, ...]") -> NDArray:  # type: ignore[type-arg]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _masks(parts: list[pa.Array]) -> NDArray[np.bool_]:
    return np.concatenate([np.empty(0, dtype=bool), *(_mask(part) for part in parts)])


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    return np.array(values.to_numpy(zero_copy_only=False), dtype=bool)
