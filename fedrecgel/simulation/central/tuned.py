"""A central method, tuned on validation and measured on test, kept so that it is done once."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, DataError
from fedrecgel.common.evaluation import (
    held_out,
    rank_among_candidates,
    rank_and_list,
    rank_in_catalogue,
)
from fedrecgel.common.metrics import RankCounts, metric
from fedrecgel.simulation.central.methods import METHODS, Method, Params
from fedrecgel.simulation.central.training import Training
from fedrecgel.simulation.lists import TOP

__all__ = ["CACHE", "TUNED_BY", "Reference", "check_methods", "references"]

CACHE = "references"
"""Folder in the data set's own folder; it holds ranks of users, as private as the data are."""

TUNED_BY = "full.ndcg@10"
"""Validation metric that chooses from the grid."""

_FORMAT = 1
_RANKS = ("users", "sampled_greater", "sampled_ties", "full_greater", "full_ties")


@dataclass(frozen=True, eq=False)
class Reference:
    """What a central method reached on the test items.

    Attributes
    ----------
    params
        The chosen row of the grid.
    trials
        Every row tried with its validation value; empty where there was nothing to tune.
    ranks
        ``sampled`` and ``full``; ``users`` are data set indices.
    lists
        (n, 10) of the same users.
    """

    name: str
    params: Params
    trials: list[dict[str, Any]]
    seconds: float
    cached: bool
    ranks: dict[str, RankCounts]
    lists: NDArray[np.int64]


def check_methods(names: Sequence[str]) -> None:
    """Refuse an unknown name."""
    for name in names:
        if name not in METHODS:
            raise ConfigError(f"unknown reference {name!r}; choose from {', '.join(METHODS)}")


def references(
    dataset: Dataset,
    names: Sequence[str] | None = None,
    *,
    fresh: bool = False,
    strict: bool = True,
    tell: Callable[[str], None] = lambda line: None,
) -> tuple[list[Reference], dict[str, str]]:
    """Tune and measure central methods, or read what an earlier call found.

    Parameters
    ----------
    names
        Keys of `METHODS`. None: all quick ones that can be had here; those that cannot are returned
        with the reason.
    strict
        A method asked for by name that cannot be had is an error.
    fresh
        Do not read what an earlier call found.
    tell
        Told a line before each method that has to be computed.
    """
    check_methods(names or [])
    training, found, left_out = Training(dataset), [], {}
    quick = [name for name, method in METHODS.items() if method.quick]
    for name in dict.fromkeys(names or quick):
        method = METHODS[name]
        kept = None if fresh else _read(dataset, method)
        if kept is None:
            tell(f"{name}: {len(method.grid)} settings to try")
            try:
                kept = _compute(training, method)
            except DataError as error:
                if names is not None and strict:
                    raise
                left_out[name] = str(error)
                continue
            _write(dataset, method, kept)
        found.append(kept)
    return found, left_out


def _compute(training: Training, method: Method) -> Reference:
    start = time.perf_counter()
    trials = _tune(training, method)
    best = max(trials, key=lambda trial: trial["value"])["params"] if trials else method.grid[0]
    held = held_out(training.dataset, "test")
    view = method.fit(training, best, "test")
    full, lists = rank_and_list(view, held.positives, held.excluded, TOP)
    sampled = rank_among_candidates(view, held.positives, held.candidates)
    seconds = time.perf_counter() - start
    ranks = {"sampled": sampled, "full": full}
    return Reference(method.name, best, trials, seconds, False, ranks, lists)


def _tune(training: Training, method: Method) -> list[dict[str, Any]]:
    held = held_out(training.dataset, "validation")
    if len(method.grid) == 1 or not np.any(np.asarray(held.positives) >= 0):
        return []
    trials = []
    for params in method.grid:
        view = method.fit(training, params, "validation")
        counts = rank_in_catalogue(view, held.positives, held.excluded)
        value = float(metric(TUNED_BY.partition(".")[2], counts).mean())
        trials.append({"params": dict(params), "value": value})
    return trials


def _path(dataset: Dataset, method: Method) -> Path | None:
    if dataset.path is None:
        return None
    # Times are not among the arrays that the data set's hash covers.
    times = dataset.manifest.files.get("interactions.parquet", "")
    told = [_FORMAT, dataset.hash, times, method.name, method.version, list(method.grid), TUNED_BY]
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    return dataset.path / CACHE / f"{method.name}-{digest}.npz"


def _read(dataset: Dataset, method: Method) -> Reference | None:
    path = _path(dataset, method)
    if path is None or not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as kept:
            told = json.loads(str(kept["told"]))
            users, *columns = (kept[name].astype(np.int64) for name in _RANKS)
            lists = kept["lists"].astype(np.int64)
        ranks = {
            "sampled": RankCounts(columns[0], columns[1], users),
            "full": RankCounts(columns[2], columns[3], users),
        }
        return Reference(
            method.name, told["params"], told["trials"], told["seconds"], True, ranks, lists
        )
    except (OSError, ValueError, KeyError, EOFError):
        return None  # damaged: computed again and written over


def _write(dataset: Dataset, method: Method, found: Reference) -> None:
    path = _path(dataset, method)
    if path is None:
        return
    told = {"params": found.params, "trials": found.trials, "seconds": found.seconds}
    sampled, full = found.ranks["sampled"], found.ranks["full"]
    columns = (full.users, sampled.greater, sampled.ties, full.greater, full.ties)
    arrays: dict[str, Any] = {n: c.astype(np.int32) for n, c in zip(_RANKS, columns, strict=True)}
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.npz")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        np.savez(temporary, told=json.dumps(told), lists=found.lists.astype(np.int32), **arrays)
        os.replace(temporary, path)
    except OSError:
        return  # a data folder that may only be read: computed again next time
    finally:
        temporary.unlink(missing_ok=True)
