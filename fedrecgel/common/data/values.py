"""Columns of text to times and ratings."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

_WHOLE = r"^[+-]?([0-9]{1,18}|[0-8][0-9]{18})$"
_DATE = r"^[0-9]{4}"


@dataclass(frozen=True)
class Values:
    """Numbers of a column; ``missing`` where the field is empty, ``wrong`` where it is no value."""

    numbers: NDArray[np.int64] | NDArray[np.float64]
    missing: NDArray[np.bool_]
    wrong: NDArray[np.bool_]


def parse_times(column: pa.Array) -> Values:
    """Read times: whole numbers exactly, other numbers, or dates (as nanoseconds, UTC).

    A column has one kind, the one of most of its values; values of another kind are wrong.
    """
    text = pc.utf8_trim_whitespace(column)
    missing = _mask(pc.equal(text, ""))
    whole = _mask(pc.match_substring_regex(text, _WHOLE))
    if (whole | missing).all():
        return Values(_integers(text, whole), missing, np.zeros_like(missing))
    values = parse_numbers(column)
    full = int((~missing).sum())
    if int(values.wrong.sum()) * 2 < full:
        if (whole | missing | values.wrong).all():
            return Values(_integers(text, whole), missing, values.wrong)
        return values
    # pandas also takes "now" and "today" for dates.
    dates = pc.if_else(pc.match_substring_regex(text, _DATE), text, None)
    stamps = pd.to_datetime(
        pd.Series(dates.to_pylist(), dtype=object), format="ISO8601", utc=True, errors="coerce"
    )
    known = stamps.notna().to_numpy(dtype=bool)
    if int(known.sum()) * 2 < full:
        return values
    nanoseconds = stamps.dt.as_unit("ns").astype("int64").to_numpy(dtype=np.int64)
    return Values(np.where(known, nanoseconds, 0), missing, ~known & ~missing)


def parse_numbers(column: pa.Array) -> Values:
    """Read finite numbers."""
    text = pc.utf8_trim_whitespace(column)
    missing = _mask(pc.equal(text, ""))
    series = pd.Series(text.to_pylist(), dtype=object)
    numbers = pd.to_numeric(series, errors="coerce").to_numpy(dtype=np.float64)
    wrong = ~np.isfinite(numbers) & ~missing
    return Values(np.where(missing | wrong, 0.0, numbers), missing, wrong)


def _integers(text: pa.Array, whole: NDArray[np.bool_]) -> NDArray[np.int64]:
    digits = pc.replace_substring_regex(pc.if_else(pa.array(whole), text, "0"), r"^\+", "")
    return np.asarray(digits.cast(pa.int64()).to_numpy(), dtype=np.int64)


def _mask(values: pa.Array) -> NDArray[np.bool_]:
    return np.array(values.to_numpy(zero_copy_only=False), dtype=bool)
