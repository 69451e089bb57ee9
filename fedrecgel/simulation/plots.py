"""``curves.png``: loss and validation metrics over rounds, beside popularity.

Drawn through matplotlib's objects, without pyplot, so nothing global is touched and no display is
needed. Imported only when a picture is wanted: matplotlib takes a second to load.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedrecgel.simulation.rounds import MetricRow, series

__all__ = ["curves"]

_MODEL, _REFERENCE, _QUIET = "#0b5fa5", "#c04a00", "#666666"
_PANELS = (
    ("sampled", "hr@10", "HR@10, among 99 sampled items"),
    ("sampled", "ndcg@10", "NDCG@10, among 99 sampled items"),
    ("full", "ndcg@10", "NDCG@10, whole catalogue"),
)


def curves(history: Sequence[MetricRow], result: Mapping[str, Any], path: Path) -> None:
    """Draw a run: one panel for the loss, one for each ranking that was measured over rounds.

    Rows with ``validation`` are drawn beside popularity on the validation items; where there are
    none (protocol paper) the rows' ``test`` beside popularity on the test items, and labelled so.
    """
    split = "validation" if any(row.get("validation") for row in history) else "test"
    panels = [p for p in _PANELS if series(history, split, p[0], p[1])]
    figure, axes = _canvas(1 + len(panels))
    _draw_loss(axes[0], history)
    for axis, (ranking, name, title) in zip(axes[1:], panels, strict=True):
        points = series(history, split, ranking, name)
        axis.plot(*zip(*points, strict=True), color=_MODEL, linewidth=2, marker=_marker(points))
        axis.set_title(f"{split} {title}", fontsize=10)
        _draw_popularity(axis, _popularity(result, split, ranking, name))
    for axis in axes:
        _finish(axis, result.get("round", {}).get("chosen"))
    figure.suptitle(_title(result), fontsize=11)
    _save(figure, path)


def _canvas(panels: int) -> tuple[Figure, list[Axes]]:
    # Two panels a row: about as wide as the column of a README, so its text stays readable.
    columns, rows = min(panels, 2), math.ceil(panels / 2)
    figure = Figure(figsize=(4.2 * columns, 2.9 * rows + 0.3), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.set_visible(False)
    return figure, axes[:panels]


def _draw_loss(axis: Axes, history: Sequence[MetricRow]) -> None:
    points = [(row["round"], row["loss"]) for row in history if row.get("loss") is not None]
    if points:
        axis.plot(*zip(*points, strict=True), color=_MODEL, linewidth=2, marker=_marker(points))
    axis.set_title("training loss", fontsize=10)


def _marker(points: Sequence[object]) -> str:
    return "o" if len(points) < 3 else ""


def _popularity(result: Mapping[str, Any], split: str, ranking: str, name: str) -> float | None:
    key = "validation_popularity" if split == "validation" else "popularity"
    value = result.get(key, {}).get(ranking, {}).get(name, {}).get("value")
    return None if value is None else float(value)


def _draw_popularity(axis: Axes, level: float | None) -> None:
    if level is None:
        return
    axis.axhline(level, color=_REFERENCE, linewidth=1.5, linestyle="--")
    axis.margins(y=0.15)
    axis.annotate(
        f"popularity {level:.3f}",
        (0.98, level),
        xycoords=("axes fraction", "data"),
        xytext=(0, 3),
        textcoords="offset points",
        ha="right",
        color=_REFERENCE,
        fontsize=9,
    )


def _finish(axis: Axes, chosen: int | None) -> None:
    axis.set_xlabel("round", fontsize=9)
    axis.tick_params(labelsize=9)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#dddddd", linewidth=0.6)
    axis.set_axisbelow(True)
    if chosen is not None:
        axis.axvline(chosen, color=_QUIET, linewidth=1, linestyle=":")


def _title(result: Mapping[str, Any]) -> str:
    data = result["data"]
    name = f"{result['algorithm']} on {data['name']}" if "algorithm" in result else data["name"]
    chosen = result.get("round", {}).get("chosen")
    where = "" if chosen is None else f"  ·  dotted: round {chosen}, the one reported"
    return f"{name}{where}"


def _save(figure: Figure, path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # No software version in the file: the same numbers give the same bytes.
        figure.savefig(temporary, format="png", metadata={"Software": None})
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
