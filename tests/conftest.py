"""Fixtures that every test may use."""

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest

from fedrecgel.client.app import app
from fedrecgel.client.store import ArrayStore
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.config import Config
from fedrecgel.common.data.dataset import Dataset, by_name, make_dataset
from fedrecgel.common.data.store import write_data_set
from fedrecgel.common.hashing import mix
from fedrecgel.common.state import State
from fedrecgel.server.exchange import Failure
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.grid import InProcessGrid


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of published data sets, one subfolder each; skip where there is none.

    It is ``$FEDRECGEL_DATA`` or ``../shared/data`` beside the repository. With
    ``FEDRECGEL_REQUIRE_REAL_DATA=1`` (CI) its absence is a failure.
    """
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("FEDRECGEL_DATA") or beside)
    if not folder.is_dir():
        message = f"no data sets in {folder}: set FEDRECGEL_DATA to their folder"
        if os.environ.get("FEDRECGEL_REQUIRE_REAL_DATA") == "1":
            pytest.fail(message)
        pytest.skip(message)
    return folder


# How long an example takes says more about the machine's load than about the code.
hypothesis.settings.register_profile("fedrecgel", deadline=None)
hypothesis.settings.load_profile("fedrecgel")


class Federation:
    """A run of the Strategy over in-process nodes, with everything it left within reach."""

    def __init__(self, data: Dataset, config: Config, folder: Path, nodes: int) -> None:
        self.data, self.config, self.folder, self.nodes = data, config, folder, nodes
        self.lines: list[dict[str, Any]] = []
        self.told: list[tuple[str, Failure]] = []

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Sites and reasons."""
        return [(site, failure.reason) for site, failure in self.told]

    def grid(self, kind: type[InProcessGrid] = InProcessGrid) -> InProcessGrid:
        parts = range(self.nodes)
        configs: list[dict[str, Any]] = [
            {"partition-id": part, "num-partitions": self.nodes} for part in parts
        ]
        return kind(app, configs, {"data": str(self.data.path), "state": str(self.folder)})

    def run(self, grid: InProcessGrid | None = None) -> FedRecStrategy:
        strategy = FedRecStrategy(
            self.config,
            min_nodes=self.nodes,
            wait=1.0,
            on_round=self.lines.append,
            on_failure=lambda site, failure: self.told.append((site, failure)),
        )
        strategy.start(grid or self.grid())
        return strategy

    def store(self) -> ArrayStore:
        """The folder of private state, as the nodes left it."""
        algorithm = make_algorithm(self.config, self.data.num_items)
        header = json.loads((self.folder / "store.json").read_text())
        return ArrayStore(
            self.folder, header["experiment"], self.data.num_users, algorithm.private_template
        )

    def private(self) -> State:
        """Private tensors of the chosen round, of all users trained by then."""
        return self.store().load_chosen(np.arange(self.data.num_users))[0]


@pytest.fixture
def federation(tmp_path: Path) -> Callable[..., Federation]:
    """Return a maker of runs: ``federation(data, "fedncf", nodes=3, rounds=2, ...)``."""
    count = itertools.count()

    def make(data: Dataset, algorithm: str = "fedrecgel", nodes: int = 1, **settings: Any) -> Any:
        folder = tmp_path / f"state-{next(count)}"
        return Federation(data, make_config(algorithm, settings), folder, nodes)

    return make


@pytest.fixture
def on_disk(tmp_path: Path) -> Callable[[Dataset], Dataset]:
    """Return a function that writes a data set made in memory to a folder and opens it."""
    count = itertools.count()

    def write(data: Dataset) -> Dataset:
        folder = tmp_path / f"data-{next(count)}"
        write_data_set(folder, data.manifest, by_name(data.arrays()), {})
        return Dataset.load(folder)

    return write


@pytest.fixture(scope="session")
def small_data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """24 users with 3 to 9 of 30 items, ids that are seen nowhere else; not to be changed."""
    train, validation, test = [], [], []
    for user in range(24):
        length = 3 + user % 7
        items = np.argsort(mix("small", user, np.arange(30)))[: length + 2].tolist()
        train.append(items[:length])
        validation.append(items[length])
        test.append(items[length + 1])
    ids = [f"Quixote-{user * 37 % 24:02d}-Zx" for user in range(24)]
    data = make_dataset(train, validation, test, 30, user_ids=ids, num_candidates=15)
    folder = tmp_path_factory.mktemp("small") / "data"
    write_data_set(folder, data.manifest, by_name(data.arrays()), {})
    return Dataset.load(folder)
