"""Algorithms by name."""

import difflib
from collections.abc import Mapping
from typing import Any

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

ALGORITHMS: dict[str, type[Algorithm[Any]]] = {
    algorithm.name: algorithm
    for algorithm in (FedRecGEL, FedMF, FedNCF, PerFedRec, PFedRec, FedRAP, CoFedRec, GPFedRec)
}


def algorithm_class(name: str) -> type[Algorithm[Any]]:
    """The algorithm of that name, or a `ConfigError` with the nearest."""
    if name not in ALGORITHMS:
        near = difflib.get_close_matches(name, ALGORITHMS, n=1, cutoff=0.4)
        hint = f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(ALGORITHMS)}"
        raise ConfigError(f"unknown algorithm '{name}'; {hint}")
    return ALGORITHMS[name]


def make_config(algorithm: str, settings: Mapping[str, Any] | None = None) -> Config:
    """Config of an algorithm from settings by kebab-case name."""
    return algorithm_class(algorithm).config_class.from_flat(settings or {})


def make_algorithm(config: Config, num_items: int) -> Algorithm[Any]:
    """The algorithm that a config belongs to."""
    return algorithm_class(config.algorithm)(config, num_items)
