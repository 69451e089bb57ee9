"""What the times of a source mean: their unit, guessed with the evidence, their span, odd ones."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.split import Events

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""How many make a second."""
NAMES = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
YYYYMMDD = "yyyymmdd"
_EARLY, _LATE = 315_532_800, 4_102_444_800
"""1980 and 2100: a number between them in some unit is a moment; the four ranges are disjoint."""
Numbers = NDArray[np.int64] | NDArray[np.float64]


def describe_times(
    events: Events, kind: str, time_type: object, name: Callable[[int], str]
) -> dict[str, object]:
    """Describe the times of the kept rows; ``name(row)`` tells where a row stands.

    Returns
    -------
    dict
        ``unit`` (None: only the order counts), ``evidence`` in words; where there is a unit
        ``first`` and ``last`` moment and whether the times are whole days (``day_only``);
        ``problems``, each with ``what``, ``count`` and ``place`` of the first.
    """
    times = events.time[events.timed]
    if not len(times):
        return {"unit": None, "evidence": "no times", "problems": []}
    unit, evidence = _unit(times, kind, time_type)
    if unit is None:
        low, high = _plain(times.min()), _plain(times.max())
        words = f"{evidence}; {low} to {high}: only their order counts"
        return {"unit": None, "evidence": words, "first": low, "last": high, "problems": []}
    if unit == YYYYMMDD:
        first, last = (_day_of_digits(int(times.min())), _day_of_digits(int(times.max())))
        day_only, problems = True, []
    else:
        per_day = 86_400 * UNITS[unit]
        first, last = moment(times.min(), unit), moment(times.max(), unit)
        day_only = bool((times % per_day == 0).all())
        problems = [] if kind == "date" else _odd_times(events, unit, name)
    words = f"{evidence} ({first} to {last})" + ("; whole days" if day_only else "")
    facts = {"unit": unit, "evidence": words, "first": first, "last": last}
    return {**facts, "day_only": day_only, "problems": problems}


def moment(time: float | np.number, unit: str) -> str:
    """Write a time as a date, with the hour where it is not midnight."""
    seconds = int(time) // UNITS[unit]
    if not -62_135_596_800 <= seconds < 253_402_300_800:
        return str(time)
    text = str(np.datetime64(seconds, "s"))
    return text.removesuffix("T00:00:00")


def _unit(times: Numbers, kind: str, time_type: object) -> tuple[str | None, str]:
    if kind == "date":
        return "ns", "written as dates"
    if time_type:
        return "us", f"of Parquet type {time_type}"
    shares = {unit: _inside(times, unit).mean() for unit in UNITS}
    best = max(shares, key=lambda unit: shares[unit])
    if shares[best] >= 0.5:
        return best, (
            f"{NAMES[best]} since 1970: so read, {_share(shares[best])} of the times lie between"
            " 1980 and 2100"
        )
    if _all_days(times):
        return YYYYMMDD, "written YYYYMMDD: every number is a day of the calendar"
    return None, "numbers of no known unit"


def _inside(times: Numbers, unit: str) -> NDArray[np.bool_]:
    factor = UNITS[unit]
    return np.asarray((times >= _EARLY * factor) & (times < _LATE * factor))


def _all_days(times: Numbers) -> bool:
    days = np.unique(times)
    year, month, day = days // 10_000, days // 100 % 100, days % 100
    fits = (year >= 1900) & (year < 2100) & (month >= 1) & (month <= 12) & (day >= 1) & (day <= 31)
    return bool((fits & (days == np.floor(days))).all())


def _day_of_digits(day: int) -> str:
    return f"{day // 10_000}-{day // 100 % 100:02d}-{day % 100:02d}"


def _odd_times(events: Events, unit: str, name: Callable[[int], str]) -> list[dict[str, object]]:
    """Find times that are of another unit, zero, or far from all others."""
    odd = events.timed & ~_inside(events.time, unit)
    if not odd.any():
        return []
    found = []
    for other in UNITS:
        mask = odd & _inside(events.time, other)
        if mask.any():
            found.append(
                _problem(f"look like {NAMES[other]} among {NAMES[unit]}", mask, events, name)
            )
            odd &= ~mask
    zero = odd & (events.time == 0)
    if zero.any():
        found.append(_problem("are 0, which often stands for a missing time", zero, events, name))
        odd &= ~zero
    if odd.any():
        found.append(_problem("lie before 1980 or after 2100", odd, events, name))
    return found


def _problem(
    what: str, mask: NDArray[np.bool_], events: Events, name: Callable[[int], str]
) -> dict[str, object]:
    row = int(np.argmax(mask))
    value = _plain(events.time[row])
    return {"what": f"times {what}", "count": int(mask.sum()), "place": name(row), "text": value}


def _share(value: float) -> str:
    # Rounded down, so that 100 % means all.
    return f"{np.floor(1_000 * value) / 10:g} %"


def _plain(value: np.number) -> str:
    number = float(value) if value.dtype.kind == "f" else int(value)
    return str(int(number)) if number == int(number) else f"{number:g}"
