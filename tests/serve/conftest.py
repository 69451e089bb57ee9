"""Finished runs to serve from: a run folder, and a deployed site with a file of its own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecgel import Result, prepare, simulate
from fedrecgel.client.app import app
from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.hashing import mix
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.grid import InProcessGrid

SETTINGS: dict[str, Any] = {"scorer": "dot", "embedding_dim": 4, "rounds": 2, "evaluate_every": 1}


@pytest.fixture(scope="session")
def served_run(tmp_path_factory: pytest.TempPathFactory) -> Result:
    """Half of 60 users trained."""
    folder = tmp_path_factory.mktemp("served")
    data = prepare("synthetic", folder / "data", users=60, items=80)
    return simulate(data, folder / "run", fraction=0.3, log="none", **SETTINGS)


@dataclass
class OwnSite:
    """A deployed site: its file, its state, and runs on it.

    Ten users have 5 to 8 of the items i0 to i29 each; "newcomer" has two, too few to be trained.
    Three users, "newcomer" among them, have "brand-new", which no catalogue knows.
    """

    folder: Path
    key_file: Path | None = None

    @property
    def file(self) -> Path:
        return self.folder / "interactions.csv"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    def write(self, *more: str) -> None:
        rows = ["user,item,time"]
        for user in range(10):
            items = np.argsort(mix("own site", user, np.arange(30)))[: 5 + user % 4]
            rows += [f"Quixote-{user}-Zx,i{item},{time}" for time, item in enumerate(items)]
        rows += ["newcomer,i0,1", "newcomer,i1,2", "newcomer,brand-new,3"]
        rows += [f"Quixote-{user}-Zx,brand-new,99" for user in range(2)]
        self.file.write_text("\n".join([*rows, *more]) + "\n")

    def train(self, algorithm: str = "fedrecgel", **settings: Any) -> FedRecStrategy:
        """A run with this site as the only one."""
        items = np.array([f"i{item}" for item in range(30)])
        node = {"site": "clinic-a", "interactions": str(self.file), "state": str(self.state)}
        if self.key_file is not None:
            node["key-file"] = str(self.key_file)
        own = SETTINGS if algorithm == "fedrecgel" else {"rounds": 2, "evaluate_every": 1}
        strategy = FedRecStrategy(
            make_config(algorithm, {**own, "fraction": 1.0, **settings}),
            min_nodes=1,
            wait=1.0,
            catalogue=Catalogue("clinics", items, num_candidates=9),
        )
        strategy.start(InProcessGrid(app, [node], {}))
        return strategy

    def data(self) -> Dataset:
        """What the last run trained on."""
        return Dataset.load(next((self.state / "prepared").iterdir()))


@pytest.fixture
def own_site(tmp_path: Path) -> Callable[..., OwnSite]:
    """Return a maker of sites whose file is written: ``own_site(key_file)``."""

    def make(key_file: Path | None = None) -> OwnSite:
        site = OwnSite(tmp_path, key_file)
        site.write()
        return site

    return make
