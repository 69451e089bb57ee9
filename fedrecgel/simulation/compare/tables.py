"""A comparison as text, Markdown, CSV, LaTeX and HTML, from the content of ``comparison.json``."""

import csv
import html
import io
from collections.abc import Mapping, Sequence
from typing import Any

from fedrecgel.simulation.compare.columns import (
    ACCURACY,
    COSTS,
    Column,
    foot,
    head,
    measured,
    part_head,
    trials,
    value_text,
)
from fedrecgel.simulation.compare.gather import METRICS

__all__ = ["csv_table", "html_page", "latex_tables", "markdown_tables", "text_tables"]

Values = Mapping[str, Any]


def grid(rows: Sequence[Values], columns: Sequence[Column]) -> list[list[str]]:
    """Cells as text, a title line first; a row without numbers says so in its first cell."""
    lines = [["", *(column.title for column in columns)]]
    for row in rows:
        name = f"({row['label']})" if row["kind"] == "reference" else row["label"]
        if not measured(row):
            lines.append([name, row["status"], *([""] * (len(columns) - 1))])
            continue
        seeds = len(row["seeds"])
        partial = f" [{seeds} seed{'s' * (seeds > 1)}]" if row["status"] == "partial" else ""
        lines.append([name + partial, *(column.cell(row) for column in columns)])
    return lines


# --- text


def text_tables(values: Values) -> str:
    """The text: two tables for each data set, references in brackets."""
    lines = head(values)
    for part in values["data"]:
        lines += ["", *part_head(part), "", *_aligned(grid(part["rows"], ACCURACY)), ""]
        lines += _aligned(grid([row for row in part["rows"] if measured(row)], COSTS))
        lines += ["", *foot(part)]
    return "\n".join([*lines, "", *values["reading"]]) + "\n"


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]


# --- Markdown


def markdown_tables(values: Values) -> str:
    """Two tables for each data set, as GitHub shows them."""
    lines = []
    for part in values["data"]:
        lines += [f"## {_markdown(part['name'])}", "", *map(_markdown, part_head(part))]
        for columns in (ACCURACY, COSTS):
            shown = [row for row in part["rows"] if columns is ACCURACY or measured(row)]
            lines.append("")
            for place, cells in enumerate(grid(shown, columns)):
                lines.append(f"| {' | '.join(map(_markdown, cells))} |")
                if place == 0:
                    lines.append(f"| --- |{' ---: |' * len(columns)}")
        lines += ["", *(f"- {_markdown(line)}" for line in foot(part)), ""]
    told = [f"- {_markdown(line)}" for line in [*head(values), *values["reading"]]]
    return "\n".join([*lines, *told]) + "\n"


def _markdown(text: str) -> str:
    escaped = "".join(f"\\{c}" if c in "\\|*_<>[]`" else c for c in text)
    return escaped.replace("\n", " ")


# --- CSV


def csv_table(values: Values) -> str:
    """One line for each row of each data set, with plain numbers."""
    file = io.StringIO()
    names = ["data", "hash", "protocol", "row", "kind", "status", "seeds", "evaluated"]
    for metric in METRICS:
        names += [f"{metric}{part}" for part in ("", " low", " high", " difference", " p_holm")]
    more = ["bytes_up", "bytes_down", "cpu_per_round", "never_trained", "head", "tail"]
    names += [*more, "overlap", "coverage", "trials", "server_sees", "scored_with", "negatives"]
    writer = csv.DictWriter(file, [*names, "settings", "notes"], lineterminator="\n")
    writer.writeheader()
    for part in values["data"]:
        for row in part["rows"]:
            line = {"data": part["name"], "hash": part["hash"], "protocol": part["protocol"]}
            line |= {"row": row["label"], "kind": row["kind"], "status": row["status"]}
            line |= {"notes": "; ".join(row["notes"]), "trials": trials(row)}
            line["settings"] = " ".join(f"{n}={value_text(v)}" for n, v in row["settings"].items())
            line |= {n: row["about"].get(n, "") for n in names if n in row["about"]}
            if measured(row):
                line |= {"evaluated": row["evaluated"], "seeds": len(row["seeds"])}
                line |= {name: row[name] for name in [*more, "overlap", "coverage"]}
                line |= _metric_columns(row)
            writer.writerow(line)
    return file.getvalue()


def _metric_columns(row: Values) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in METRICS:
        cell, test = row["metrics"][name], row["tests"].get(name, {})
        found |= {name: cell["mean"], f"{name} low": cell["low"], f"{name} high": cell["high"]}
        found |= {f"{name} difference": test.get("value"), f"{name} p_holm": test.get("p_holm")}
    return found


# --- LaTeX

_LATEX = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    "*": r"$^{*}$",
}


def latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(_LATEX.get(character, character) for character in text)


def latex_tables(values: Values) -> str:
    r"""Two ``tabular`` for each data set, with ``\hline`` only: no package is needed."""
    lines = [f"% {line}" for line in [*head(values), *values["reading"]]]
    for part in values["data"]:
        lines += ["", *(f"% {line}" for line in [*part_head(part), *foot(part)])]
        for columns in (ACCURACY, COSTS):
            shown = [row for row in part["rows"] if columns is ACCURACY or measured(row)]
            lines.append(rf"\begin{{tabular}}{{l{'r' * len(columns)}}}")
            for place, cells in enumerate(grid(shown, columns)):
                lines.append(" & ".join(latex(cell) for cell in cells) + r" \\")
                if place == 0:
                    lines.append(r"\hline")
            lines += [r"\hline", r"\end{tabular}", ""]
    # A comment ends with its line, so a line break inside one would become text.
    return "\n".join(line.replace("\r", " ").replace("\n", " ") for line in lines) + "\n"


# --- HTML

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;"
    "color:#1a1a1a;background:#fff}table{border-collapse:collapse;margin:.7rem 0 1.4rem}"
    "th,td{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd;white-space:nowrap}"
    "th:first-child,td:first-child{text-align:left}.best{font-weight:700}.reference{color:#555}"
    ".note{color:#444;font-size:.87em;margin:.1rem 0}code{font-size:.92em}"
    "div{overflow-x:auto}img{max-width:100%}"
)


def html_page(values: Values) -> str:
    """A page that needs nothing but the pictures beside it."""
    lines = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        f"<title>Comparison</title><style>{_STYLE}</style></head><body><h1>Comparison</h1>",
        *_notes(head(values)),
    ]
    for part in values["data"]:
        lines += [f"<h2>{html.escape(part['name'])}</h2>", *_notes(part_head(part))]
        for columns in (ACCURACY, COSTS):
            shown = [row for row in part["rows"] if columns is ACCURACY or measured(row)]
            lines.append(_table(shown, columns))
        lines += _notes(foot(part))
    for name, what in (("accuracy", "accuracy against bytes"), ("curves", "validation curves")):
        lines.append(f'<h2>{what}</h2><img src="{name}.png" alt="{what}">')
    return "\n".join([*lines, *_notes(values["reading"]), "</body></html>"]) + "\n"


def _table(rows: Sequence[Values], columns: Sequence[Column]) -> str:
    cells = grid(rows, columns)
    title = "".join(f"<th>{html.escape(cell)}</th>" for cell in cells[0])
    body = []
    for row, line in zip(rows, cells[1:], strict=True):
        kinds = ' class="reference"' if row["kind"] == "reference" else ""
        inside = "".join(_cell(cell) for cell in line)
        body.append(f"<tr{kinds}>{inside}</tr>")
    return f"<div><table><tr>{title}</tr>{''.join(body)}</table></div>"


def _cell(text: str) -> str:
    best = ' class="best"' if text.endswith("*") else ""
    return f"<td{best}>{html.escape(text)}</td>"


def _notes(lines: Sequence[str]) -> list[str]:
    return [f'<p class="note">{html.escape(line)}</p>' for line in lines]
