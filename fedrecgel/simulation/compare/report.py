"""A comparison as plain values, and the files that show it."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrecgel.common.config import Scalar
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import RunError
from fedrecgel.common.evaluation import held_out
from fedrecgel.common.json_file import write_json
from fedrecgel.simulation.compare.gather import Row
from fedrecgel.simulation.compare.tables import (
    csv_table,
    html_page,
    latex_tables,
    markdown_tables,
    text_tables,
)
from fedrecgel.simulation.counted import count_candidates
from fedrecgel.simulation.report import versions

__all__ = ["FORMAT", "Comparison", "Part", "options_of"]

FORMAT = 1
JSON = "comparison.json"

READING = (
    "metrics in %, mean over seeds ± half of the 95 % t-interval over seeds; references have one "
    "training, so none",
    "*: best federated mean; -: worse than it, paired bootstrap over users with the seeds' "
    "noise, p < 0.05 after Holm's correction over the federated rows of this data set and metric",
    "+, -: a reference that is better or worse than the best federated row, corrected likewise "
    "over the references",
    "sampled: among up to 99 items never interacted with, as published tables; full: among all "
    "items not interacted with before",
    "up, down: bytes of a device that is one user, in a round it takes part in; CPU s/round: "
    "processor seconds of a round of all its users on one thread, evaluations included",
    "untrained: users that were chosen in no round up to the reported one; head, tail: full HR@10 "
    "for held-out items among the most and least popular, a third of interactions each",
    "alike: of ten recommended items, how many two users share on average",
)


@dataclass(frozen=True)
class Part:
    """One data set and its rows."""

    data: Dataset
    rows: Sequence[Row]


def options_of(
    seeds: int,
    budget: int,
    trial_rounds: int,
    workers: int,
    time_limit: float | None,
    common: Mapping[str, Scalar],
) -> dict[str, Any]:
    """What was asked for, as it stands in the files."""
    return {
        "seeds": seeds,
        "budget": budget,
        "trial_rounds": trial_rounds or None,
        "workers": workers,
        "time_limit": time_limit,
        "settings": dict(common),
    }


class Comparison:
    """The result of `fedrecgel.compare`.

    Attributes
    ----------
    values
        The content of ``comparison.json``.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self.values = values

    @classmethod
    def of(cls, parts: Sequence[Part], options: Mapping[str, Any], command: str) -> "Comparison":
        """Put rows and what was asked for together."""
        return cls(
            {
                "format": FORMAT,
                "command": command,
                "options": dict(options),
                "versions": versions(),
                "reading": list(READING),
                "data": list(map(_part, parts, _names(parts))),
            }
        )

    @classmethod
    def open(cls, path: str | Path) -> "Comparison":
        """Read what `write` wrote, from the folder."""
        file = Path(path) / JSON
        try:
            values = json.loads(file.read_text(encoding="utf-8"))
        except OSError:
            raise RunError(f"{file} is missing; make it with: fedrecgel compare") from None
        except ValueError:
            values = None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            raise RunError(f"{file} is damaged or of another format; compare again")
        return cls(values)

    def row(self, data: str, label: str) -> dict[str, Any]:
        """A row by the names of its data set and its algorithm or reference."""
        for part in self.values["data"]:
            for row in part["rows"]:
                if part["name"] == data and row["label"] == label:
                    return dict(row)
        raise RunError(f"no row '{label}' of data set '{data}' in this comparison")

    def table(self) -> str:
        """The tables as text."""
        return text_tables(self.values)

    def write(self, folder: Path) -> None:
        """Write ``comparison.json``, its tables in five forms, and the pictures."""
        # Imported here: matplotlib takes a second to load.
        from fedrecgel.simulation.compare.figures import figures

        try:
            write_json(folder / JSON, self.values)
            for ending, text in (
                ("txt", text_tables(self.values)),
                ("md", markdown_tables(self.values)),
                ("csv", csv_table(self.values)),
                ("tex", latex_tables(self.values)),
                ("html", html_page(self.values)),
            ):
                _put(folder / f"comparison.{ending}", text)
            figures(self.values, folder)
        except OSError as error:
            raise RunError(f"cannot write the tables to {folder}: {error.strerror}") from None


def _put(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def _names(parts: Sequence[Part]) -> list[str]:
    """Names of the data sets; of several with one name each has the start of its hash behind it."""
    names = [part.data.name for part in parts]
    return [
        f"{part.data.name} {part.data.hash[:8]}" if names.count(part.data.name) > 1 else name
        for name, part in zip(names, parts, strict=True)
    ]


def _part(part: Part, name: str) -> dict[str, Any]:
    data = part.data
    return {
        "name": name,
        "hash": data.hash,
        "protocol": data.protocol,
        "split": data.split,
        "seed": data.manifest.seed,
        "users": data.num_users,
        "items": data.num_items,
        "train": data.num_train,
        "candidates": count_candidates(held_out(data, "test")),
        "rows": [row.to_json() for row in part.rows],
    }
