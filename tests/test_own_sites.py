"""Sites with files of their own in one federation: the numbers of all their users in one node."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrecgel.client.app import app
from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.prepare import prepare
from fedrecgel.common.errors import FederationError
from fedrecgel.common.hashing import mix
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.grid import InProcessGrid

pytestmark = pytest.mark.flower

SETTINGS: dict[str, Any] = {
    "rounds": 3,
    "fraction": 0.5,
    "scorer": "dot",
    "embedding_dim": 4,
    "dtype": "float64",
    "evaluate_every": 1,
}
Node = dict[str, Any]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """24 users with 5 to 11 of 30 items, prepared from a file: users in the order of their ids."""
    folder = tmp_path_factory.mktemp("whole")
    lines = ["user,item,time"]
    for user in range(24):
        items = np.argsort(mix("own", user, np.arange(30)))[: 5 + user % 7]
        lines += [f"Quixote-{user:02d}-Zx,{item},{time}" for time, item in enumerate(items)]
    (folder / "all.csv").write_text("\n".join(lines) + "\n")
    return prepare(folder / "all.csv", folder / "data", num_candidates=15)


def write_sites(data: Dataset, cuts: list[int], folder: Path) -> list[Node]:
    """Node-configs of sites with the users between ``cuts``, in the order of the data set."""
    nodes = []
    for number, (first, last) in enumerate(zip([0, *cuts], [*cuts, data.num_users], strict=True)):
        lines = ["user,item,time"]
        for user in range(first, last):
            held = (data.validation_items[user], data.test_items[user])
            items = [*data.train_of(user), *(item for item in held if item >= 0)]
            lines += [
                f"{data.user_ids[user]},{data.item_ids[item]},{time}"
                for time, item in enumerate(items)
            ]
        file = folder / f"{number}.csv"
        file.write_text("\n".join(lines) + "\n")
        nodes.append(
            {
                "site": f"site-{number}",
                "interactions": str(file),
                "state": str(folder / f"state-{number}"),
            }
        )
    return nodes


def run_sites(
    data: Dataset, nodes: list[Node], kind: type[InProcessGrid] = InProcessGrid, **settings: Any
) -> tuple[FedRecStrategy, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    strategy = FedRecStrategy(
        make_config("fedrecgel", {**SETTINGS, **settings}),
        min_nodes=len(nodes),
        wait=1.0,
        on_round=lines.append,
        catalogue=Catalogue.of(data),
    )
    strategy.start(kind(app, nodes, {}))
    return strategy, lines


def test_separate_sites_compute_what_one_node_with_all_users_does(
    federation: Callable[..., Any], data: Dataset, tmp_path: Path
) -> None:
    """Three sites of different size, the last with one user."""
    whole = federation(data, nodes=1, **SETTINGS)
    expected = whole.run().outcome
    nodes = write_sites(data, [14, 23], tmp_path)
    strategy, lines = run_sites(data, nodes)
    outcome = strategy.outcome
    assert outcome is not None
    assert [m.last - m.first for m in outcome.roster.members] == [14, 9, 1]
    assert outcome.roster.accepted.tolist() == expected.roster.accepted.tolist()
    assert torch.allclose(outcome.best.shared["items"], expected.best.shared["items"], atol=1e-10)
    for ranking, sums in outcome.test.items():
        np.testing.assert_allclose(sums.totals, expected.test[ranking].totals, atol=1e-9)
    for found, line in zip(lines, whole.lines, strict=True):
        np.testing.assert_allclose(found["loss"], line["loss"], rtol=1e-9)


def test_the_same_file_at_two_sites_is_refused(data: Dataset, tmp_path: Path) -> None:
    nodes = write_sites(data, [20], tmp_path)
    nodes[1]["interactions"] = nodes[0]["interactions"]
    with pytest.raises(FederationError, match="'site-0' and 'site-1' have the very same data"):
        run_sites(data, nodes)


def test_a_site_that_cannot_take_part_is_told_before_round_1(data: Dataset, tmp_path: Path) -> None:
    nodes = write_sites(data, [20], tmp_path)
    Path(nodes[1]["interactions"]).unlink()
    with pytest.raises(FederationError, match=r"1 of 2 nodes answered; .*site-1: .*1.csv") as found:
        run_sites(data, nodes)
    assert "\n" not in str(found.value)


def test_a_node_with_prepared_data_does_not_mix_with_them(data: Dataset, tmp_path: Path) -> None:
    nodes = write_sites(data, [20], tmp_path)
    prepared = {"data": str(data.path), "state": str(tmp_path / "s")}
    nodes[1] = {**prepared, "partition-id": 1, "num-partitions": 2}
    with pytest.raises(FederationError, match="'site-1' does not use the catalogue"):
        run_sites(data, nodes)
