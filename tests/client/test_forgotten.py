"""A run goes on when a site forgets somebody: they train and are measured as a new user."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedrecgel.client.evaluator import evaluate
from fedrecgel.client.site import Site
from fedrecgel.client.sqlite_file import SqliteFile
from fedrecgel.client.sqlite_store import SqliteStore
from fedrecgel.client.store_contents import forget_user
from fedrecgel.client.trainer import train
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.requests import EvaluateRequest, Experiment, TrainRequest
from fedrecgel.common.state import State, Update

CONFIG = make_config("fedncf", {"scorer": "dot", "embedding-dim": 2, "dtype": "float64"})
EXPERIMENT = Experiment("x", "fedncf", CONFIG.to_flat(), 5)
SHARED = make_algorithm(CONFIG, 5).init_server().shared


class StoredSite(Site):
    def store(self, experiment: Experiment, template: State) -> SqliteStore:
        path = self.state_folder / "private.sqlite"
        users = self.data.user_ids.tolist()
        return SqliteStore(path, experiment.id, self.name, users, template)


@pytest.fixture
def data(on_disk: Callable[[Dataset], Dataset]) -> Dataset:
    return on_disk(make_dataset([[0, 1], [2], [1, 2]], [2, 1, 0], [3, 4, 4], 5))


def site_in(folder: Path, data: Dataset) -> Site:
    return StoredSite("site-1", data, 0, 3, folder)


def trained(site: Site, round: int, accepted: list[int]) -> Update:
    kept = np.array([accepted], dtype=np.int64)
    (update,) = train(site, TrainRequest(EXPERIMENT, round, np.arange(3), kept, SHARED)).updates
    return update


def measured(site: Site, accepted: list[int]) -> dict[str, float | int]:
    rounds = np.array(accepted, dtype=np.int64)
    return evaluate(site, EvaluateRequest(EXPERIMENT, 9, "test", True, rounds, SHARED))


def assert_equal(one: Update, two: Update) -> None:
    assert one.users == two.users
    assert one.loss == two.loss
    for name, (index, rows) in one.rows.items():
        assert index.tolist() == two.rows[name][0].tolist()
        assert rows.tolist() == two.rows[name][1].tolist()


def test_who_was_forgotten_trains_and_is_measured_as_new(data: Dataset, tmp_path: Path) -> None:
    """The other site has the same history, but its server never accepted that user's round."""
    here, other = site_in(tmp_path / "here", data), site_in(tmp_path / "other", data)
    for site in (here, other):
        trained(site, 1, [0, 0, 0])
    file = SqliteFile(tmp_path / "here" / "private.sqlite")
    forget_user(file, str(data.user_ids[1]))
    file.close()
    assert_equal(trained(here, 2, [1, 1, 1]), trained(other, 2, [1, 0, 1]))
    assert measured(here, [2, 2, 2]) == measured(other, [2, 2, 2])
    # The best round was before: at the end the server names it for everybody.
    new, old = measured(here, [1, 1, 1]), measured(other, [1, 0, 1])
    assert {**new, "trained": 0} == {**old, "trained": 0}
    assert_equal(trained(here, 3, [2, 2, 2]), trained(other, 3, [2, 2, 2]))
