"""Sites with files of their own in one federation: the numbers of all their users in one node."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message, RecordDict
from flwr.common.serde import recorddict_to_proto

from fedrecgel.client.app import app
from fedrecgel.client.own_data import open_own_data
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
    """U018."""
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


def test_what_only_a_simulation_tells_its_nodes_is_asked_for(data: Dataset, tmp_path: Path) -> None:
    """U018: node-config is empty, wrong, or of another node."""

    def node(part: int, **changes: Any) -> Node:
        share = {"partition-id": part, "num-partitions": 3}
        return {"data": str(data.path), "state": str(tmp_path / "s"), **share, **changes}

    def refused(*nodes: Node) -> str:
        config = make_config("fedrecgel", SETTINGS)
        strategy = FedRecStrategy(config, min_nodes=len(nodes), wait=1.0)
        with pytest.raises(FederationError) as found:
            strategy.start(InProcessGrid(app, list(nodes), {}))
        assert "\n" not in str(found.value)
        return str(found.value)

    assert "the node has no 'data'; give it in --node-config, e.g. data='/data/" in refused({})
    assert "/nowhere is not a prepared data set" in refused(node(0, data="/nowhere"))
    assert "partition-id is 7 but num-partitions 3; ids run" in refused(node(0), node(7))
    assert "two nodes call themselves 'site-1'" in refused(node(0), node(1), node(1))


def test_a_node_with_prepared_data_does_not_mix_with_them(data: Dataset, tmp_path: Path) -> None:
    nodes = write_sites(data, [20], tmp_path)
    prepared = {"data": str(data.path), "state": str(tmp_path / "s")}
    nodes[1] = {**prepared, "partition-id": 1, "num-partitions": 2}
    with pytest.raises(FederationError, match="'site-1' does not use the catalogue"):
        run_sites(data, nodes)


# --- what travels -------------------------------------------------------------------------------


class Captured(InProcessGrid):
    """Keeps every message and reply, and the bytes that would travel."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.pairs: list[tuple[Message, Message]] = []
        self.bytes = b""

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        self.pairs.append((message, reply))
        for content in (message.content, reply.content):
            self.bytes += recorddict_to_proto(content).SerializeToString()
        return reply

    def contents(self, kind: str) -> list[tuple[RecordDict, RecordDict]]:
        return [(m.content, r.content) for m, r in self.pairs if m.metadata.message_type == kind]


@pytest.fixture
def captured(data: Dataset, tmp_path: Path) -> tuple[Captured, list[Node], FedRecStrategy]:
    """A run of three sites, the last with one user."""
    grids: list[Captured] = []

    class Keeping(Captured):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            grids.append(self)

    nodes = write_sites(data, [14, 23], tmp_path)
    strategy, _ = run_sites(data, nodes, Keeping, fraction=1.0)
    return grids[0], nodes, strategy


def test_deployed_sites_send_declared_tensors_and_counts_alone(
    captured: tuple[Captured, list[Node], FedRecStrategy], data: Dataset
) -> None:
    grid, _, strategy = captured
    version = {"version", "messages"}
    for request, reply in grid.contents("query"):
        assert set(request) == {"query", "catalogue", "items"}
        assert set(request["query"]) == {"run"} | version
        assert set(request["catalogue"]) == set(Catalogue.of(data).rules) - {"threshold"} | {
            *("name", "hash")
        }
        assert list(request["items"]) == ["ids"]
        assert list(reply) == ["hello"]
        counts = {"users", "num_items", "validation_users", "test_users", "parts", "unknown"}
        assert set(reply["hello"]) == counts | {"site", "catalogue", "fingerprint"} | version
        assert all(type(reply["hello"][name]) is int for name in counts)
    shared = strategy.federation.algorithm.tensors.shared
    for request, reply in grid.contents("train"):
        assert set(request) == {"request", "users", "shared"}
        assert set(reply) == {"update", "metrics"}
        assert {key.split("/")[1] for key in reply["update"]} <= shared
        assert set(reply["metrics"]) == {"users", "loss", "touched", "round"}
    for request, reply in grid.contents("evaluate"):
        assert set(request) == {"request", "users", "shared"}
        assert list(reply) == ["metrics"]
        assert not reply.array_records


def test_nothing_of_a_site_but_its_name_is_in_a_message(
    captured: tuple[Captured, list[Node], FedRecStrategy], data: Dataset
) -> None:
    """No id of a user, no path, no private number."""
    grid, nodes, strategy = captured
    assert b"site-2" in grid.bytes
    for text in ("Quixote", "-Zx", nodes[0]["state"], nodes[0]["interactions"], "csv"):
        assert text.encode() not in grid.bytes
    experiment, looked_for = strategy.federation.experiment, 0
    for node in nodes:
        site = open_own_data(node, experiment)
        store = site.store(experiment, strategy.federation.algorithm.private_template)
        state = store.load(site.users, store.latest(site.users))
        for value in state.values():
            if value.dim() > 1:
                for row in value.numpy()[:, :3]:
                    looked_for += 1
                    assert row.tobytes() not in grid.bytes
        assert site.data.hash.encode() not in grid.bytes
    assert looked_for >= data.num_users


def test_a_site_with_one_user_shows_that_users_items(
    captured: tuple[Captured, list[Node], FedRecStrategy], data: Dataset
) -> None:
    """What docs/explanation/what-the-server-can-see.md says plainly, shown."""
    grid, _, _ = captured
    rows = [
        set(reply["update"]["0/items/index"].numpy().tolist())
        for request, reply in grid.contents("train")
        if len(request["users"]["slots"].numpy()) == 1
    ]
    assert len(rows) == 3
    own = set(data.train_of(data.num_users - 1).tolist())
    assert all(own <= touched for touched in rows)
    # Negatives are drawn anew each round, and what comes back every time is the user's own.
    assert len(set.intersection(*rows) - own) < len(rows[0] - own)
