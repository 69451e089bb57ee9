"""The pictures of a comparison: accuracy against bytes, and validation over rounds with bands."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedrecgel.simulation.compare.columns import measured

__all__ = ["ACCURACY_PNG", "CURVES_PNG", "figures"]

ACCURACY_PNG, CURVES_PNG = "accuracy.png", "curves.png"
_METRIC = "full.ndcg@10"

# Dark enough on white, and told apart by marker and dashes as well as by colour. No two lengths
# share a factor, so that the first forty rows all look different.
_COLOURS = ("#0b5fa5", "#c04a00", "#1b7f4d", "#8a3fa0", "#b3123f", "#6b5b00", "#00808a", "#444444")
_MARKERS = "osD^vPX*<"
_DASHES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
_QUIET = "#777777"


def figures(values: Mapping[str, Any], folder: Path) -> None:
    """Draw both into the folder."""
    parts = values["data"]
    labels = list(dict.fromkeys(row["label"] for part in parts for row in _federated(part)))
    styles = {label: place for place, label in enumerate(labels)}
    for draw, path, title in (
        (_bytes, folder / ACCURACY_PNG, "Full NDCG@10 on test items against traffic"),
        (_curves, folder / CURVES_PNG, "Validation over rounds, mean and range of the seeds"),
    ):
        figure, axes = _canvas(len(parts))
        figure.suptitle(title, fontsize=12)
        shown: dict[str, Any] = {}
        for part, axis in zip(parts, axes, strict=True):
            drawn = draw(axis, part, styles)
            if not drawn:
                _say_nothing(axis)
            shown |= drawn
            axis.set_title(part["name"], fontsize=11)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(color="#e4e4e4", linewidth=0.6)
            axis.set_axisbelow(True)
            axis.tick_params(labelsize=9)
        if shown:
            figure.legend(
                shown.values(),
                shown.keys(),
                loc="outside lower center",
                ncols=min(3 if len(parts) == 1 else 5, len(shown)),
                fontsize=9,
                frameon=False,
            )
        # No software version in the file: the same numbers give the same bytes.
        figure.savefig(path, format="png", metadata={"Software": None})


def _federated(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [row for row in part["rows"] if row["kind"] == "federated" and measured(row)]


def _canvas(panels: int) -> tuple[Figure, list[Axes]]:
    columns = min(panels, 2)
    rows = -(-panels // columns)
    figure = Figure(figsize=(5.2 * columns, 3.5 * rows + 0.9), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[panels:]:
        spare.set_visible(False)
    return figure, axes[:panels]


def _bytes(axis: Axes, part: Mapping[str, Any], styles: Mapping[str, int]) -> dict[str, Any]:
    shown = {}
    for row in _federated(part):
        if row["bytes_up"] is None:
            continue
        cell, place = row["metrics"][_METRIC], styles[row["label"]]
        mean = 100 * cell["mean"]
        spread = None
        if cell["low"] is not None:
            spread = [[mean - 100 * cell["low"]], [100 * cell["high"] - mean]]
        shown[row["label"]] = axis.errorbar(
            (row["bytes_up"] + row["bytes_down"]) / 1e3,
            mean,
            yerr=spread,
            fmt=_MARKERS[place % len(_MARKERS)],
            color=_COLOURS[place % len(_COLOURS)],
            markersize=8,
            markerfacecolor="none",  # equal points stay visible on each other
            markeredgewidth=1.6,
            capsize=3,
            linewidth=1,
        )
    for row in part["rows"]:
        if row["kind"] == "reference" and measured(row) and row["label"] in ("popularity", "ease"):
            level = 100 * row["metrics"][_METRIC]["mean"]
            axis.axhline(level, color=_QUIET, linewidth=1, linestyle="--")
            axis.annotate(
                row["label"],
                (0.99, level),
                xycoords=("axes fraction", "data"),
                xytext=(0, 2),
                textcoords="offset points",
                ha="right",
                color=_QUIET,
                fontsize=8,
            )
    axis.set_xscale("log")
    # Traffic spans less than a decade where dimensions are alike: more ticks than powers of ten.
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:,.10g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.margins(x=0.15, y=0.12)
    axis.set_xlabel("kB of one user and round, up and down", fontsize=9)
    axis.set_ylabel("full NDCG@10, %", fontsize=9)
    return shown


def _say_nothing(axis: Axes) -> None:
    axis.text(0.5, 0.5, "not made yet", transform=axis.transAxes, ha="center", color=_QUIET)
    axis.set_xticks([])
    axis.set_yticks([])


def _curves(axis: Axes, part: Mapping[str, Any], styles: Mapping[str, int]) -> dict[str, Any]:
    shown = {}
    for row in _federated(part):
        if not row["curve"]:
            continue
        rounds, mean, low, high = _columns(row["curve"])
        place = styles[row["label"]]
        colour = _COLOURS[place % len(_COLOURS)]
        (line,) = axis.plot(
            rounds, mean, color=colour, linewidth=1.8, linestyle=_DASHES[place % len(_DASHES)]
        )
        axis.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        shown[row["label"]] = line
    axis.set_xlabel("round", fontsize=9)
    axis.set_ylabel("selection metric on validation, %", fontsize=9)
    axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return shown


def _columns(points: Sequence[Sequence[float]]) -> list[list[float]]:
    rounds, *values = (list(column) for column in zip(*points, strict=True))
    return [rounds, *([100 * value for value in column] for column in values)]
