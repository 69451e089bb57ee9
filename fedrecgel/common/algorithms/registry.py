"""Algorithms by name: this package's own and those of others.

A program registers its own with `register`. An installed package declares them as entry points of
the group ``fedrecgel.algorithms``; every process of a run then finds them by itself.
"""

import difflib
import importlib.metadata
from collections.abc import Mapping
from typing import Any, TypeVar

from fedrecgel.common.algorithms.base import Algorithm
from fedrecgel.common.algorithms.cofedrec import CoFedRec
from fedrecgel.common.algorithms.fedmf import FedMF
from fedrecgel.common.algorithms.fedncf import FedNCF
from fedrecgel.common.algorithms.fedrap import FedRAP
from fedrecgel.common.algorithms.fedrecgel import FedRecGEL
from fedrecgel.common.algorithms.gpfedrec import GPFedRec
from fedrecgel.common.algorithms.perfedrec import PerFedRec
from fedrecgel.common.algorithms.pfedrec import PFedRec
from fedrecgel.common.config import Config
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.state import Tensors

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    algorithm.name: algorithm
    for algorithm in (FedRecGEL, FedMF, FedNCF, PerFedRec, PFedRec, FedRAP, CoFedRec, GPFedRec)
}


GROUP = "fedrecgel.algorithms"
"""Entry points of other packages; their names are those of the algorithms."""

AlgorithmT = TypeVar("AlgorithmT", bound=type[Algorithm[Any]])


def register(algorithm: AlgorithmT) -> AlgorithmT:
    """Make an algorithm known by its name; a class decorator.

    The same class defined again, as by a notebook's cell that is run twice, takes its own place.

    Raises
    ------
    ConfigError
        When the name is another algorithm's, or the config's is not the same.
    """
    name = algorithm.name
    other = ALGORITHMS.get(name)
    if other is not None and _path(other) != _path(algorithm):
        raise ConfigError(f"there is an algorithm '{name}' already; choose another name")
    if algorithm.config_class.algorithm != name:
        raise ConfigError(
            f"{algorithm.__name__} is called '{name}' but its config "
            f"'{algorithm.config_class.algorithm}'; give both the same name"
        )
    ALGORITHMS[name] = algorithm
    return algorithm


def _path(algorithm: type[Algorithm[Any]]) -> tuple[str, str]:
    return algorithm.__module__, algorithm.__qualname__


def _look_for(name: str) -> None:
    """Register an algorithm that an installed package declares."""
    for point in importlib.metadata.entry_points(group=GROUP, name=name):
        register(point.load())


def all_names() -> list[str]:
    """Names of all algorithms: ours, those registered here, those of installed packages."""
    for point in importlib.metadata.entry_points(group=GROUP):
        if point.name not in ALGORITHMS:
            register(point.load())
    return list(ALGORITHMS)


def algorithm_class(name: str) -> type[Algorithm[Any]]:
    """The algorithm of that name, or a `ConfigError` with the nearest."""
    if name not in ALGORITHMS:
        _look_for(name)
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0.4)
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(ALGORITHMS)}"
        raise ConfigError(f"unknown algorithm '{name}'; {hint}")
    return ALGORITHMS[name]


def make_config(algorithm: str, settings: Mapping[str, Any] | None = None) -> Config:
    """Config of an algorithm from settings by kebab-case name."""
    return algorithm_class(algorithm).config_class.from_flat(settings or {})


def make_algorithm(config: Config, num_items: int) -> Algorithm[Any]:
    """The algorithm that a config belongs to.

    Raises
    ------
    ConfigError
        When the settings, or the algorithm's own declarations, contradict each other.
    """
    algorithm = algorithm_class(config.algorithm).variant(config)(config, num_items)
    if not isinstance(getattr(algorithm, "tensors", None), Tensors):
        raise ConfigError(
            f"{algorithm.name} declares no tensors; give it self.tensors = Tensors(...)"
        )
    if algorithm.tensors.uploaded and algorithm.reduce == "sum":
        raise ConfigError(
            f"{algorithm.name} uploads private '{min(algorithm.tensors.uploaded)}', but its reduce "
            "is 'sum'; give it reduce = 'per-user', which is what the server then sees"
        )
    return algorithm
