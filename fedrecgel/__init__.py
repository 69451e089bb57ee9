"""fedrecgel: a federated recommender on Flower.

Each user is a client with a private vector; the server holds the item embeddings and the scorer.

>>> from fedrecgel import prepare, simulate
>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> data = prepare("synthetic", f"{folder}/data", users=100)
>>> result = simulate(data, f"{folder}/run", rounds=2)
>>> len(result.recommend(data.user_ids[0]))
10
"""

import os
from typing import TYPE_CHECKING, Any

# Flower would report usage and look for updates; nothing that we ship calls home. Set before flwr
# is imported, and only where the user has not decided otherwise.
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")

if TYPE_CHECKING:
    from fedrecgel.common.algorithms.registry import make_config
    from fedrecgel.common.config import Config
    from fedrecgel.common.data.dataset import Dataset
    from fedrecgel.common.data.prepare import prepare
    from fedrecgel.common.errors import FedRecError
    from fedrecgel.common.records import initial_arrays, settings_record
    from fedrecgel.server.strategy import FedRecStrategy
    from fedrecgel.simulation.compare.report import Comparison
    from fedrecgel.simulation.compare.study import compare
    from fedrecgel.simulation.personal import PersonalModel
    from fedrecgel.simulation.result import Result
    from fedrecgel.simulation.run import simulate

__version__ = "0.1.0"

_WHERE = {
    "Comparison": "fedrecgel.simulation.compare.report",
    "Config": "fedrecgel.common.config",
    "Dataset": "fedrecgel.common.data.dataset",
    "FedRecError": "fedrecgel.common.errors",
    "FedRecStrategy": "fedrecgel.server.strategy",
    "PersonalModel": "fedrecgel.simulation.personal",
    "Result": "fedrecgel.simulation.result",
    "compare": "fedrecgel.simulation.compare.study",
    "initial_arrays": "fedrecgel.common.records",
    "make_config": "fedrecgel.common.algorithms.registry",
    "prepare": "fedrecgel.common.data.prepare",
    "settings_record": "fedrecgel.common.records",
    "simulate": "fedrecgel.simulation.run",
}

__all__ = [
    "Comparison",
    "Config",
    "Dataset",
    "FedRecError",
    "FedRecStrategy",
    "PersonalModel",
    "Result",
    "compare",
    "initial_arrays",
    "make_config",
    "prepare",
    "settings_record",
    "simulate",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - PEP 562; types are declared above
    """Load public names when they are first used: torch and Flower take seconds to import."""
    if name not in _WHERE:
        raise AttributeError(f"module 'fedrecgel' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    """The public names, those not loaded yet included."""
    return sorted(__all__)
