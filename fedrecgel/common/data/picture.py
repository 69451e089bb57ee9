"""One picture of a file of interactions. Imported only when wanted: matplotlib is slow to load.

Drawn through matplotlib's objects, without pyplot, so nothing global is touched.
"""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from fedrecgel.common.data.inspect import Inspection
from fedrecgel.common.data.text_report import mapping
from fedrecgel.common.data.times import UNITS
from fedrecgel.common.errors import DataError

_BARS, _LINE = "#0b5fa5", "#c04a00"


def draw(found: Inspection, path: Path) -> None:
    """Draw activity, popularity, time and concentration to a PNG file."""
    figure = Figure(figsize=(8.4, 6.1), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(2, 2).flat)
    _histogram(axes[0], found.activity, "items of a user", "users")
    _histogram(axes[1], found.popularity, "users of an item", "items")
    _over_time(axes[2], found)
    _concentration(axes[3], found)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=9)
    source, pairs = mapping(found.report["source"]), mapping(found.report["pairs"])
    name = source.get("file") or source.get("kind")
    figure.suptitle(
        f"{name}: {pairs['users']:,} users, {pairs['items']:,} items, {pairs['interactions']:,}"
        " pairs",
        fontsize=11,
    )
    _save(figure, path)


def _histogram(axis: Axes, counts: NDArray[np.int64], what: str, whose: str) -> None:
    top = max(int(counts.max()), 2)
    edges = np.unique(np.round(np.geomspace(1, top + 1, 30))) - 0.5
    axis.hist(counts, bins=edges.tolist(), color=_BARS)
    axis.set_xscale("log")
    middle = float(np.median(counts))
    axis.axvline(middle, color=_LINE, linewidth=1.5, linestyle="--")
    axis.set_title(f"{what} (median {middle:g})", fontsize=10)
    axis.set_ylabel(whose, fontsize=9)


def _over_time(axis: Axes, found: Inspection) -> None:
    facts: Mapping[str, object] = mapping(mapping(found.report["reading"]).get("times"))
    unit = facts.get("unit")
    if not len(found.times):
        axis.set_title("no times", fontsize=10)
        return
    values = found.times.astype(np.float64)
    if unit in UNITS:
        # Years are read more easily than seconds, and need no calendar of ticks.
        values = 1970 + values / UNITS[str(unit)] / (365.2425 * 86_400)
    low, high = np.quantile(values, [0.001, 0.999])
    inside = values[(values >= low) & (values <= high)]
    axis.hist(inside, bins=60, color=_BARS)
    axis.ticklabel_format(axis="x", useOffset=False)
    axis.set_title("rows over time" + (" (years)" if unit in UNITS else ""), fontsize=10)


def _concentration(axis: Axes, found: Inspection) -> None:
    for counts, whose, color in (
        (found.activity, "activity", _BARS),
        (found.popularity, "popularity", _LINE),
    ):
        share = np.concatenate([[0.0], np.cumsum(np.sort(counts)) / counts.sum()])
        at = np.linspace(0, len(counts), min(len(counts), 500) + 1).astype(np.int64)
        gini = float(str(mapping(found.report[whose])["gini"]))
        label = f"{whose}, Gini {gini:.2f}"
        axis.plot(at / len(counts), share[at], color=color, linewidth=2, label=label)
    axis.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle=":")
    axis.set_title("share of pairs of the least active/popular", fontsize=10)
    axis.legend(fontsize=9, frameon=False)


def _save(figure: Figure, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # No software version in the file: the same numbers give the same bytes.
        figure.savefig(temporary, format="png", metadata={"Software": None})
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)
