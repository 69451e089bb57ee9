"""The moment from which on everything is held out."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.split import Events
from fedrecgel.common.data.times import UNITS, YYYYMMDD, moment
from fedrecgel.common.errors import ConfigError, DataError

Times = NDArray[np.int64] | NDArray[np.float64] | NDArray[np.number]


def find_cut(
    events: Events, cut: str, times: object, name: str
) -> tuple[float | int, dict[str, object]]:
    """Translate ``--cut`` to a time of the data.

    Parameters
    ----------
    events
        What is left after the filter.
    cut
        A share of the events before the cut (``0.9``), a date, or a number like those in the file.
    times
        What ``describe_times`` found.
    name
        Of the source, for messages.

    Returns
    -------
    tuple
        The time, and for the report: it again, ``words`` for it, and the ``share`` of the events
        from it on.
    """
    known = np.sort(events.time[events.timed])
    if not len(known):
        raise DataError(
            f"{name}: a split by time needs times, and there are none; set --time-column, or use"
            " --split share or leave-one-out"
        )
    facts = times if isinstance(times, Mapping) else {}
    unit = facts.get("unit")
    unit = str(unit) if unit is not None else None
    value = _value(known, cut, unit, name)
    held = len(known) - int(np.searchsorted(known, value, side="left"))
    if held == 0 or 2 * held >= len(known):
        words = f"{_words(known[0], unit)} to {_words(known[-1], unit)}"
        much = "nothing" if held == 0 else "half of the events or more"
        raise DataError(
            f"{name}: cut {cut} holds out {much} ({held:,} of {len(known):,}), and validation takes"
            f" as many; the times go from {words}"
        )
    words = _words(value, unit)
    return value, {"time": value, "words": words, "share": held / len(known)}


def _value(known: Times, cut: str, unit: str | None, name: str) -> float | int:
    try:
        number = float(cut)
    except ValueError:
        return _from_date(cut, unit, name)
    if 0 < number < 1:
        chosen: float | int = known[int(number * len(known))].item()
        return chosen
    if not np.isfinite(number):
        raise ConfigError(f"cut is {cut}; it is a share like 0.9, a date, or a time of the data")
    return int(cut) if cut.strip().lstrip("+-").isdigit() else number


def _from_date(cut: str, unit: str | None, name: str) -> int:
    import pandas as pd  # half a second, which other processes can do without

    stamp = pd.to_datetime(cut, errors="coerce") if cut[:1].isdigit() else pd.NaT
    if not isinstance(stamp, pd.Timestamp):
        raise ConfigError(f"cut is {cut!r}; it is a share like 0.9, a date, or a time of the data")
    if unit is None:
        raise DataError(f"{name}: cut {cut} is a date, but the times are numbers of no known unit")
    stamp = stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp.tz_convert("UTC")
    if unit == YYYYMMDD:
        return int(stamp.strftime("%Y%m%d"))
    return int(stamp.as_unit("ns").value) * UNITS[unit] // 10**9


def _words(value: float | int, unit: str | None) -> str:
    if unit is None or unit == YYYYMMDD:
        return str(value)
    return moment(value, unit)
