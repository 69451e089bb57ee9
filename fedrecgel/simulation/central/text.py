"""References as lines of text."""

from collections.abc import Mapping
from typing import Any

__all__ = ["reference_table"]

_SHOWN = ("hr@10", "ndcg@10")


def reference_table(report: Mapping[str, Any]) -> str:
    """Return the text of a `reference_report`: a line for each method, in % of users."""
    header = "".join(f"{f'{r} {n}':>19}" for r in ("sampled", "full") for n in _SHOWN)
    lines = [f"{'':<11}{header}"]
    for name, entry in report["methods"].items():
        cells = (entry["test"][r][n] for r in ("sampled", "full") for n in _SHOWN)
        lines.append(f"{name:<11}" + "".join(f"{_cell(cell):>19}" for cell in cells))
    lines += ["", f"± is the standard error over users; tuned by {report['tuned_by']}:"]
    for name, entry in report["methods"].items():
        if entry["params"]:
            chosen = ", ".join(f"{key} {value:g}" for key, value in entry["params"].items())
            how = f"best of {len(entry['trials'])}" if entry["trials"] else "untuned: no validation"
            lines.append(f"  {name}: {chosen} ({how}, {entry['seconds']:.0f} s)")
    lines += [f"left out: {name}: {reason}" for name, reason in report["left_out"].items()]
    return "\n".join([*lines, report["note"]])


def _cell(cell: Mapping[str, Any]) -> str:
    if cell["value"] is None:
        return "-"
    error = "" if cell["se"] is None else f" ± {cell['se']:.4f}"
    return f"{cell['value']:.4f}{error}"
