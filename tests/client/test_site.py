"""A node's side: which users it hosts, what it says at the start, and what it refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecgel.client import trainer
from fedrecgel.client.site import Site, algorithm_of, open_site
from fedrecgel.client.trainer import train
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.errors import ConfigError, DataError, FederationError
from fedrecgel.common.requests import Experiment, TrainRequest

Write = Callable[[Dataset], Dataset]
CONFIG = make_config("fedncf", {"scorer": "dot", "embedding-dim": 2})


@pytest.fixture
def data(on_disk: Write) -> Dataset:
    """Five users, of whom the second and the last have nothing to train on."""
    train_rows = [[0, 1], [], [2], [1, 2, 3], []]
    return on_disk(make_dataset(train_rows, [2, 1, -1, 0, 0], [3, 2, 1, 4, -1], 5))


def open_part(data: Dataset, folder: Path, part: int = 0, parts: int = 1) -> Site:
    config: dict[str, object] = {"partition-id": part, "num-partitions": parts}
    return open_site(config, {"data": str(data.path), "state": str(folder / "state")})


def request(site: Site, slots: list[int], round: int = 1, **changes: Any) -> TrainRequest:
    experiment = Experiment("x", "fedncf", CONFIG.to_flat(), 5)
    shared = make_algorithm(CONFIG, site.data.num_items).init_server().shared
    kept = np.zeros((1, len(slots)), dtype=np.int64)
    values: dict[str, Any] = {"slots": np.array(slots, dtype=np.int64), "kept": kept}
    values = {"experiment": experiment, "round": round, "shared": shared, **values, **changes}
    return TrainRequest(**values)


@pytest.mark.parametrize("parts", [1, 2, 3, 5])
def test_the_users_are_shared_out_once_each(data: Dataset, tmp_path: Path, parts: int) -> None:
    sites = [open_part(data, tmp_path, part, parts) for part in range(parts)]
    assert [u for site in sites for u in site.users.tolist()] == [0, 2, 3]
    assert [site.name for site in sites] == sorted(site.name for site in sites)
    assert len({site.name for site in sites}) == parts


def test_names_of_many_sites_sort_by_number(data: Dataset, tmp_path: Path) -> None:
    names = [open_part(data, tmp_path, part, 11).name for part in range(11)]
    assert names == sorted(names)


def test_held_out_items_reach_the_sampler_only_where_asked_for(
    data: Dataset, tmp_path: Path
) -> None:
    """U063: slots 2 and 0 are the users 3 and 0, of whom 0 and 4, 2 and 3 are held out."""
    site = open_part(data, tmp_path)
    slots = np.array([2, 0])
    assert site.training_data(slots).barred is None
    leaky = site.training_data(slots, leaky=True)
    assert leaky.barred is not None
    assert [part.tolist() for part in leaky.barred] == [[0, 4, 2, 3], [0, 2, 4]]
    assert leaky.items.tolist() == site.training_data(slots).items.tolist() == [1, 2, 3, 0, 1]


@pytest.mark.parametrize("negatives", ["clean", "leaky"])
def test_the_setting_says_whether_they_do(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, negatives: str
) -> None:
    seen: list[bool] = []
    real = Site.training_data

    def watched(self: Site, slots: Any, *, leaky: bool = False) -> Any:
        seen.append(leaky)
        return real(self, slots, leaky=leaky)

    monkeypatch.setattr(Site, "training_data", watched)
    site, config = open_part(data, tmp_path), CONFIG.replace(negatives=negatives)
    experiment = Experiment("x", "fedncf", config.to_flat(), 5)
    train(site, request(site, [0, 1], experiment=experiment))
    assert seen == [negatives == "leaky"]


def test_hello_counts_the_users_that_can_train(data: Dataset, tmp_path: Path) -> None:
    hello = open_part(data, tmp_path).hello()
    assert (hello.users, hello.num_items, hello.validation_users) == (3, 5, 2)
    assert hello.catalogue == data.hash
    assert open_part(data, tmp_path, 4, 5).hello().users == 0


def test_slots_are_the_users_that_can_train(data: Dataset, tmp_path: Path) -> None:
    site = open_part(data, tmp_path)
    assert site.interactions.items.tolist() == [0, 1, 2, 1, 2, 3]
    assert site.interactions.keys.tolist() == data.user_keys[[0, 2, 3]].tolist()
    held_out = site.held_out("test")
    assert held_out.positives.tolist() == [3, 1, 4]
    assert len(held_out.excluded) == 3


@pytest.mark.parametrize("missing", ["data", "state", "partition-id", "num-partitions"])
def test_a_missing_entry_of_the_node_is_named(data: Dataset, tmp_path: Path, missing: str) -> None:
    config: dict[str, object] = {
        "data": str(data.path),
        "state": str(tmp_path),
        "partition-id": 0,
        "num-partitions": 1,
    }
    del config[missing]
    with pytest.raises(ConfigError, match=f"the node has no '{missing}'"):
        open_site(config, {})


@pytest.mark.parametrize(
    ("part", "parts"), [(1, 1), (-1, 1), ("one", 1), (0.0, 1), (True, 2), (0, 0)]
)
def test_an_impossible_share_is_refused(
    data: Dataset, tmp_path: Path, part: Any, parts: Any
) -> None:
    with pytest.raises(ConfigError, match="partition"):
        open_part(data, tmp_path, part, parts)


def test_a_folder_that_is_no_data_set_is_refused(tmp_path: Path) -> None:
    config: dict[str, object] = {"partition-id": 0, "num-partitions": 1}
    with pytest.raises(DataError, match="not a prepared data set; make one with"):
        open_site(config, {"data": str(tmp_path / "none"), "state": str(tmp_path)})


def test_node_config_comes_before_run_config(data: Dataset, tmp_path: Path) -> None:
    own: dict[str, object] = {"data": str(data.path), "partition-id": "0", "num-partitions": "1"}
    site = open_site(own, {"data": "/nowhere", "state": str(tmp_path)})
    assert site.data.hash == data.hash


def test_a_data_set_made_anew_is_read_anew(on_disk: Write, data: Dataset, tmp_path: Path) -> None:
    from fedrecgel.common.data.dataset import by_name
    from fedrecgel.common.data.store import write_data_set

    assert open_part(data, tmp_path).hello().users == 3
    other = make_dataset([[0], [1]], [-1, -1], [2, 2], 5)
    assert data.path is not None
    write_data_set(data.path, other.manifest, by_name(other.arrays()), {}, overwrite=True)
    assert open_part(data, tmp_path).hello().users == 2


def test_training_counts_its_users_and_keeps_their_state(data: Dataset, tmp_path: Path) -> None:
    site = open_part(data, tmp_path)
    reply = train(site, request(site, [0, 2]))
    assert [update.users for update in reply.updates] == [2]
    kept = np.load(tmp_path / "state" / "rounds.npy")
    assert (kept > 0).any(axis=0).tolist() == [True, False, False, True, False]


def test_training_nobody_is_no_error(data: Dataset, tmp_path: Path) -> None:
    site = open_part(data, tmp_path)
    assert train(site, request(site, [])).updates == []


@pytest.mark.parametrize("slots", [[3], [-1], [0, 7]])
def test_users_that_are_not_here_are_refused(
    data: Dataset, tmp_path: Path, slots: list[int]
) -> None:
    site = open_part(data, tmp_path)
    with pytest.raises(FederationError, match="site-0 hosts 3 users"):
        train(site, request(site, slots))


def test_another_catalogue_is_refused(data: Dataset, tmp_path: Path) -> None:
    site = open_part(data, tmp_path)
    other = Experiment("x", "fedncf", CONFIG.to_flat(), 99)
    with pytest.raises(FederationError, match="catalogue of 5 items, the server one of 99"):
        algorithm_of(request(site, [0], experiment=other), site)


def test_a_large_cohort_is_trained_in_groups(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, algorithm = open_part(data, tmp_path), make_algorithm(CONFIG, 5)
    slots = np.arange(3)
    (whole,) = trainer._groups(site, slots, algorithm)
    assert whole.tolist() == [0, 1, 2]
    monkeypatch.setattr(trainer, "GROUP_SAMPLES", 1)
    groups = trainer._groups(site, slots, algorithm)
    assert [g.tolist() for g in groups] == [[0], [1], [2]]
    assert trainer._groups(site, slots[:0], algorithm) == []
