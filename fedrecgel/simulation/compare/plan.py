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
from fedrecgel.common.algorithms.registry import algorithm_class, all_names, make_config
from fedrecgel.common.config import Config, Scalar, checked, kebab, setting_help
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
    "foreign_module",
    "given_to",
    "refuse_unreachable",
    "start",
    "typed",
]

COMMON: Mapping[str, Scalar] = {
    "rounds": 150,
    "fraction": 0.1,
    "evaluate-every": 10,
    "select-by": "full.ndcg@10",
}
"""The same for every algorithm, whatever its preset says, unless the caller sets it."""

LIMITS = ("memory-limit", "round-timeout")
"""Settings that decide whether a run may be made, and none of its numbers."""

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
    limits
        `LIMITS` that are not the defaults: no part of what a cell is.
    """

    kind: Literal["trial", "seed", "reference"]
    name: str
    data_name: str
    data_hash: str
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    seed: int = 0
    about: str = ""
    limits: Mapping[str, Scalar] = field(default_factory=dict)

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
        limits = {name: settings.pop(name) for name in LIMITS if name in settings}
        about = f"fedrecgel {fedrecgel.__version__}, messages {MESSAGES}"
        about += _code_of_others(config.algorithm)
        told = (data.name, data.hash, settings, config.seed, about, limits)
        return cls(kind, config.algorithm, *told)

    @classmethod
    def reference(cls, data: Dataset, name: str) -> "Cell":
        """The cell of a central method, which is tuned inside it."""
        method = METHODS[name]
        about = json.dumps([fedrecgel.__version__, method.version, [dict(g) for g in method.grid]])
        return cls("reference", name, data.name, data.hash, about=about)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for files and pipes."""
        return {**self.__dict__, "settings": dict(self.settings), "limits": dict(self.limits)}


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
            found += [Entry(each, preset or "tuned") for each in all_names()]
            continue
        algorithm_class(algorithm)
        if preset and preset not in PRESETS:
            raise ConfigError(f"unknown preset in '{name}'; choose from {', '.join(PRESETS)}")
        found.append(Entry(algorithm, preset or "tuned"))
    if not found:
        raise ConfigError("name at least one algorithm, or all")
    return list(dict.fromkeys(found))


def given_to(entry: Entry, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The caller's settings that are for an entry, by their own names.

    ``settings`` may have names with a row before a dot (``fedmf.server-lr``, for all rows of that
    algorithm, ``fedmf:paper.server-lr``), for that one alone; others are for all that know them
    (`check_settings` refuses the rest). What is said for fewer rows counts more.
    """
    unused = preset_config(entry.algorithm, entry.preset, "", {}).unused
    known = _known(entry.algorithm) - set(map(kebab, unused))
    own = {name: value for name, value in settings.items() if "." not in name and name in known}
    for row in (entry.algorithm, f"{entry.algorithm}:{entry.preset}"):
        for name, value in settings.items():
            before, dot, rest = name.partition(".")
            if dot and before == row:
                own[rest] = value
    return own


def typed(rows: Sequence[Entry], settings: Mapping[str, Any]) -> dict[str, Scalar]:
    """The caller's settings as values of their types, which a command line has as words."""
    found = dict(settings)
    for row in rows:
        values, own = start(row, settings).to_flat(), given_to(row, settings)
        for name, value in settings.items():
            rest = name.partition(".")[2] or name
            # Another name may have said more for this row.
            if rest in given_to(row, {name: value}) and own[rest] == value:
                found[name] = values[rest]
    return found


def refuse_unreachable(rows: Sequence[Entry]) -> None:
    """Refuse an algorithm of the running program itself, which no other process can import."""
    for row in rows:
        if foreign_module(row.algorithm) == "__main__":
            raise ConfigError(
                f"algorithm '{row.algorithm}' is defined in the program itself; put it into a "
                "module of its own and import that: other processes train it"
            )


def start(entry: Entry, settings: Mapping[str, Any]) -> Config:
    """Where an entry's search starts: its preset, what is `COMMON` to all, the caller's settings.

    It is the same for all data sets; for ``settings`` see `given_to`.
    """
    own = given_to(entry, settings)
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
        of = {f"{row.algorithm}:{row.preset}": row.algorithm for row in rows}
        of |= {row.algorithm: row.algorithm for row in rows}
        if dot and algorithm not in of:
            whose = f"is for '{algorithm}', which is not compared" if algorithm else "names no row"
            labels = ", ".join(row.label for row in rows)
            raise ConfigError(f"setting '{name}' {whose}; rows are {labels}")
        asked = [of[algorithm]] if dot else [row.algorithm for row in rows]
        if not any((rest if dot else name) in _known(each) for each in asked):
            # The first algorithm's own message names the nearest setting.
            make_config(asked[0], {rest if dot else name: settings[name]})


def draw_trials(config: Config, budget: int, fixed: Sequence[str] = ()) -> list[Config]:
    """At most ``budget`` rows to try: ``config`` itself, then rows of the algorithm's grid.

    Parameters
    ----------
    fixed
        Settings that the caller chose: they are not searched.

    Raises
    ------
    ConfigError
        When the grid names what is no setting, or a value that its setting cannot have.
    """
    search = _grid(config)
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


def _grid(config: Config) -> dict[str, tuple[Scalar, ...]]:
    """What to search around these settings, every value one that its setting can have."""
    whose = f"`search` of {config.algorithm}"
    search = algorithm_class(config.algorithm).search_for(config)
    grid: dict[str, tuple[Scalar, ...]] = {}
    for name, values in search.items():
        if kebab(name) not in _known(config.algorithm):
            raise ConfigError(f"{whose} names '{kebab(name)}', which is none of its settings")
        if kebab(name) in (*COMMON, "seed"):
            raise ConfigError(f"{whose} names '{kebab(name)}', which is the same for all rows")
        if not isinstance(values, tuple | list):
            raise ConfigError(f"{whose}: '{kebab(name)}' needs a tuple of values, not {values!r}")
        try:
            grid[kebab(name)] = tuple(checked(type(config), name, value) for value in values)
        except ConfigError as error:
            raise ConfigError(f"{whose}: {error}") from None
    return grid


def changed(config: Config) -> dict[str, Scalar]:
    """Settings that differ from the algorithm's defaults."""
    defaults = {name: default for name, default, _ in setting_help(type(config))}
    return {name: value for name, value in config.to_flat().items() if value != defaults[name]}


def foreign_module(algorithm: str) -> str:
    """The module of an algorithm that is not of this package; "" for ours."""
    module = algorithm_class(algorithm).__module__
    return "" if module.startswith("fedrecgel.") else module


def _known(algorithm: str) -> set[str]:
    return {kebab(name) for name in algorithm_class(algorithm).config_class.__dataclass_fields__}


def _code_of_others(algorithm: str) -> str:
    """A hash of the file of an algorithm that is not of this package: its version is not ours."""
    module = foreign_module(algorithm)
    if not module:
        return ""
    try:
        source = inspect.getsource(sys.modules[module])
    except (OSError, TypeError, KeyError):
        return ""
    return f", code {hashlib.sha256(source.encode()).hexdigest()[:16]}"
