"""What stands in the columns of the tables: one place for text, LaTeX and HTML alike."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedrecgel.common.config import Scalar
from fedrecgel.common.data.candidates import NUM_CANDIDATES
from fedrecgel.simulation.compare.gather import METRICS

__all__ = [
    "ACCURACY",
    "COSTS",
    "Column",
    "foot",
    "head",
    "part_head",
    "percent",
    "trials",
    "value_text",
]

SURE = 0.05
"""Largest adjusted p that is marked."""

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Column:
    """A title, and what a measured row says under it."""

    title: str
    cell: Callable[[Row], str]


def percent(value: float | None, digits: int = 1) -> str:
    """A share in %, without the sign."""
    return "" if value is None else f"{100 * value:.{digits}f}"


def _metric(name: str) -> Callable[[Row], str]:
    def cell(row: Row) -> str:
        told = row["metrics"][name]
        text = percent(told["mean"])
        if told["low"] is not None:
            text += f" ± {percent((told['high'] - told['low']) / 2)}"
        return text + mark(row, name)

    return cell


def mark(row: Row, name: str) -> str:
    """``*`` for the best federated row, ``+`` or ``-`` where a difference to it is sure."""
    test = row["tests"].get(name)
    if test is None:
        return ""
    if test["best"]:
        return "*"
    if test["p_holm"] > SURE:
        return ""
    return "+" if test["value"] > 0 else "-"


def _bytes(number: float | None) -> str:
    if number is None:
        return ""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f} B"


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def _title(name: str) -> str:
    ranking, _, short = name.partition(".")
    return f"{ranking} {short.upper()}"


ACCURACY: Sequence[Column] = tuple(Column(_title(name), _metric(name)) for name in METRICS)

COSTS: Sequence[Column] = (
    Column("up", lambda row: _bytes(row["bytes_up"])),
    Column("down", lambda row: _bytes(row["bytes_down"])),
    Column("CPU s/round", lambda row: _number(row["cpu_per_round"], ".2g")),
    Column("untrained", lambda row: _untrained(row)),
    Column("head", lambda row: percent(row["head"])),
    Column("tail", lambda row: percent(row["tail"])),
    Column("alike", lambda row: _number(row["overlap"], ".1f")),
    Column("trials", lambda row: _trials(row)),
    Column("server sees", lambda row: row["about"].get("server_sees", "everything")),
    Column("scored with", lambda row: row["about"].get("scored_with", "")),
    Column("negatives", lambda row: row["about"].get("negatives", "")),
)


def _untrained(row: Row) -> str:
    return "" if row["kind"] == "reference" else f"{percent(row['never_trained'])} %"


def trials(row: Row) -> int:
    """How many settings were tried on validation and ended; 0: nothing was tuned."""
    if row["kind"] == "reference":
        return row.get("trials_inside") or 0
    return sum(trial["status"] == "done" for trial in row["trials"])


def _trials(row: Row) -> str:
    tried, asked = trials(row), len(row["trials"])
    if asked > tried:
        return f"{tried} of {asked}"
    return str(tried) if tried else "" if row["kind"] == "reference" else "untuned"


def head(values: Mapping[str, Any]) -> list[str]:
    """Lines that say what was compared how."""
    options, versions = values["options"], values["versions"]
    settings = ", ".join(f"{n}={value_text(v)}" for n, v in options["settings"].items())
    rounds = options["trial_rounds"]
    trials = f"{options['budget']} trials each" if options["budget"] > 1 else "nothing tuned"
    if options["budget"] > 1 and rounds:
        trials += f" of at most {rounds} rounds"
    last = options["seeds"] - 1
    seeds = f"seeds 0 to {last}" if last else "seed 0"
    limit = options["time_limit"]
    if limit is not None:
        trials += f", at most {limit:g} s of processor time a run"
    return [
        f"{seeds}; {trials}; {settings}",
        "versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()),
        f"command: {values['command']}",
    ]


def part_head(part: Mapping[str, Any]) -> list[str]:
    """Lines above the table of one data set."""
    counted = sorted({(row["evaluated"], row["eligible"]) for row in part["rows"] if measured(row)})
    users = ", ".join(f"{n:,} of {of:,}" for n, of in counted) or "none"
    return [
        f"{part['name']}: {part['users']:,} users, {part['items']:,} items, {part['train']:,} "
        f"train interactions; protocol {part['protocol']}, {part['split']}, seed {part['seed']}",
        f"hash {part['hash']}; test users counted: {users}{_candidates(part)}",
    ]


def _candidates(part: Mapping[str, Any]) -> str:
    """Said only where a small catalogue leaves fewer than the published 99."""
    told = part.get("candidates", {})
    fewest, most = told.get("fewest"), told.get("most")
    if fewest is None or fewest >= NUM_CANDIDATES:
        return ""
    many = f"{fewest} to {most}" if fewest < most else f"{most}"
    return f"; sampled: among {many} items here, not {NUM_CANDIDATES}"


def foot(part: Mapping[str, Any]) -> list[str]:
    """Lines below it: what is missing and why, and which settings were chosen."""
    lines = [f"{row['label']}: {note}" for row in part["rows"] for note in row["notes"]]
    for row in part["rows"]:
        if measured(row) and row["settings"]:
            chosen = " ".join(f"{n}={value_text(v)}" for n, v in row["settings"].items())
            lines.append(f"{row['label']} chosen: {chosen}")
    return lines


def measured(row: Row) -> bool:
    """Whether a row has numbers."""
    return "metrics" in row


def value_text(value: Scalar) -> str:
    """A setting's value as it is given to ``--set``."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
