"""What a comparison consists of: entries (rows of the table) and cells (runs), each with its hash.

Trials are drawn from each algorithm's `search` grid in an order that is a hash of the row, so the
same budget always tries the same rows, and a larger budget tries them first.
"""

import hashlib
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

import fedrecgel
from fedrecgel.common.algorithms.base import refuse_individual
from fedrecgel.common.algorithms.registry import ALGORITHMS, algorithm_class, make_config
from fedrecgel.common.config import Config, Scalar, kebab, setting_help
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.hashing import mix
from fedrecgel.common.presets import PRESETS, preset_config
from fedrecgel.common.records import MESSAGES
from fedrecgel.simulation.central.methods import METHODS

__all__ = [
    "COMMON",
    "TRIAL_SEED",
    "Cell",
    "Entry",
    "changed",
    "check_settings",
    "draw_trials",
    "entries",
    "start",
]

COMMON: Mapping[str, Scalar] = {
    "rounds": 150,
    "fraction": 0.1,
    "evaluate-every": 10,
    "select-by": "full.ndcg@10",
}
"""The same for every algorithm, whatever its preset says, unless the caller sets it."""

TRIAL_SEED = 1_000_000
"""Seed of trials: none that is reported."""


@dataclass(frozen=True)
class Entry:
    """A row of the table: an algorithm with the settings that its search starts from."""

    algorithm: str
    preset: str = "tuned"

    @property
    def label(self) -> str:
        """Name in the table."""
        return self.algorithm if self.preset == "tuned" else f"{self.algorithm}:{self.preset}"


@dataclass(frozen=True)
class Cell:
    """One run, or one reference.

    Attributes
    ----------
    name
        Algorithm, or reference.
    data_name, data_hash
        Of the data set; where its folder lies decides nothing.
    settings
        Those that differ from the algorithm's defaults.
    about
        What else decides its numbers: versions, or a reference's grid.
    """

    kind: Literal["trial", "seed", "reference"]
    name: str
    data_name: str
    data_hash: str
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    seed: int = 0
    about: str = ""

    @property
    def key(self) -> str:
        """Folder name: readable, and unique by a hash of everything that decides the numbers."""
        told = [self.kind, self.name, self.data_hash, dict(self.settings), self.seed, self.about]
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
        # A data set may be called anything, and the name is only for people to read.
        name = "".join(c if c.isalnum() or c in "-_" else "-" for c in self.data_name)[:40]
        return f"{name}-{self.name}-{self.kind}-{digest}"

    @classmethod
    def run(cls, kind: Literal["trial", "seed"], data: Dataset, config: Config) -> "Cell":
        """The cell of an algorithm's run with these settings."""
        settings = changed(config)
        settings.pop("seed", None)
        about = f"fedrecgel {fedrecgel.__version__}, messages {MESSAGES}"
        about += _code_of_others(config.algorithm)
        return cls(kind, config.algorithm, data.name, data.hash, settings, config.seed, about)

    @classmethod
    def reference(cls, data: Dataset, name: str) -> "Cell":
        """The cell of a central method, which is tuned inside it."""
        method = METHODS[name]
        about = json.dumps([fedrecgel.__version__, method.version, [dict(g) for g in method.grid]])
        return cls("reference", name, data.name, data.hash, about=about)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for files and pipes."""
        return {**self.__dict__, "settings": dict(self.settings)}


def entries(names: Sequence[str]) -> list[Entry]:
    """Rows by name: ``all``, ``NAME`` or ``NAME:PRESET``.

    Raises
    ------
    ConfigError
        For a name that is none, or when nothing is named.
    """
    found: list[Entry] = []
    for name in names:
        algorithm, _, preset = name.partition(":")
        if algorithm == "all":
            found += [Entry(each, preset or "tuned") for each in ALGORITHMS]
            continue
        algorithm_class(algorithm)
        if preset and preset not in PRESETS:
            raise ConfigError(f"unknown preset in '{name}'; choose from {', '.join(PRESETS)}")
        found.append(Entry(algorithm, preset or "tuned"))
    if not found:
        raise ConfigError("name at least one algorithm, or all")
    return list(dict.fromkeys(found))


def start(entry: Entry, settings: Mapping[str, Any]) -> Config:
    """Where an entry's search starts: its preset, what is `COMMON` to all, the caller's settings.

    It is the same for all data sets.

    ``settings`` may have names with an algorithm before a dot (``fedmf.server-lr``), for that
    algorithm alone; others are for all that know them (`check_settings` refuses the rest).
    """
    known = _known(entry.algorithm)
    own = {name: value for name, value in settings.items() if "." not in name and name in known}
    for name, value in settings.items():
        algorithm, dot, rest = name.partition(".")
        if dot and algorithm == entry.algorithm:
            own[rest] = value
    # Not the preset's row for this very data set: more trials than the budget are behind it.
    config = preset_config(entry.algorithm, entry.preset, "", {**COMMON, **own})
    refuse_individual(algorithm_class(entry.algorithm), config)
    return config


def check_settings(settings: Mapping[str, Any], rows: Sequence[Entry]) -> None:
    """Refuse a setting that no entry has, and the seed, which the comparison chooses."""
    for name in settings:
        algorithm, dot, rest = name.partition(".")
        if (rest if dot else name) == "seed":
            raise ConfigError("seeds are 0, 1, ... up to --seeds; the setting seed cannot be given")
        if dot and algorithm not in {row.algorithm for row in rows}:
            raise ConfigError(f"setting '{name}' is for {algorithm}, which is not compared")
        asked = [algorithm] if dot else [row.algorithm for row in rows]
        if not any((rest if dot else name) in _known(each) for each in asked):
            # The first algorithm's own message names the nearest setting.
            make_config(asked[0], {rest if dot else name: settings[name]})


def draw_trials(config: Config, budget: int, fixed: Sequence[str] = ()) -> list[Config]:
    """At most ``budget`` rows to try: ``config`` itself, then rows of the algorithm's grid.

    Parameters
    ----------
    fixed
        Settings that the caller chose: they are not searched.
    """
    search = algorithm_class(config.algorithm).search_for(config)
    search = {kebab(name): values for name, values in search.items()}
    unknown = sorted(search.keys() - _known(config.algorithm))
    if unknown:
        raise ConfigError(
            f"`search` of {config.algorithm} names '{unknown[0]}', which is none of its settings"
        )
    names = [name for name in sorted(search) if name not in fixed]
    rows = list(product(*(search[name] for name in names)))
    order = sorted(range(len(rows)), key=lambda i: int(mix("trial", json.dumps(rows[i]))))
    found = [config]
    for place in order:
        if len(found) >= budget:
            break
        try:
            trial = config.replace(**dict(zip(names, rows[place], strict=True)))
        except ConfigError:
            continue  # a combination that cannot be
        if trial not in found:
            found.append(trial)
    return found[: max(budget, 1)]


def changed(config: Config) -> dict[str, Scalar]:
    """Settings that differ from the algorithm's defaults."""
    defaults = {name: default for name, default, _ in setting_help(type(config))}
    return {name: value for name, value in config.to_flat().items() if value != defaults[name]}


def _known(algorithm: str) -> set[str]:
    return {kebab(name) for name in algorithm_class(algorithm).config_class.__dataclass_fields__}


def _code_of_others(algorithm: str) -> str:
    """A hash of the file of an algorithm that is not of this package: its version is not ours."""
    found = algorithm_class(algorithm)
    if found.__module__.startswith("fedrecgel."):
        return ""
    try:
        source = inspect.getsource(sys.modules[found.__module__])
    except (OSError, TypeError, KeyError):
        return ""
    return f", code {hashlib.sha256(source.encode()).hexdigest()[:16]}"
