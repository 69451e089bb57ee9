"""Nothing private leaves a node: real messages, their bytes, the run folder and the log."""

import dataclasses
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto, recorddict_to_proto

from fedrecgel import simulate
from fedrecgel.cli import main
from fedrecgel.client import site as site_module
from fedrecgel.common.algorithms.base import ServerState
from fedrecgel.common.algorithms.fedncf import FedNCF
from fedrecgel.common.algorithms.perfedrec import PerFedRec
from fedrecgel.common.algorithms.registry import ALGORITHMS, make_algorithm, make_config
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import FederationError, ReplyError
from fedrecgel.common.hashing import Keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.metrics import NAMES
from fedrecgel.common.records import pack_train_reply, unpack_train_reply
from fedrecgel.common.requests import TrainReply
from fedrecgel.common.state import State, Tensors, Update
from fedrecgel.simulation.grid import InProcessGrid

pytestmark = pytest.mark.flower

Make = Callable[..., Any]
SETTINGS = {"rounds": 2, "fraction": 0.5, "embedding_dim": 4, "init_std": 0.1, "evaluate_every": 1}
VERSION = {"version", "messages"}
ID_MARKS = (b"Quixote", b"-Zx")
"""Parts of every user id of ``small_data``."""


class CapturingGrid(InProcessGrid):
    """Keeps every message and reply, and the bytes that would travel."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.down: list[Message] = []
        self.up: list[Message] = []
        self.bytes: list[bytes] = []

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        self.down.append(message)
        self.bytes.append(message_to_proto(message).SerializeToString())
        self.up.append(reply)
        if reply.has_error():
            self.bytes.append(str(reply.error.reason).encode())
        else:
            self.bytes.append(recorddict_to_proto(reply.content).SerializeToString())
        return reply

    def of_type(self, kind: str) -> Iterator[tuple[RecordDict, RecordDict]]:
        """Contents of request and reply."""
        for message, reply in zip(self.down, self.up, strict=True):
            if message.metadata.message_type == kind:
                yield message.content, reply.content


@dataclasses.dataclass
class Captured:
    run: Any
    grid: CapturingGrid
    outcome: Any
    algorithm: Any


@pytest.fixture(params=["dot-3", "neumf-3", "dot-24", "neumf-24"])
def captured(request: pytest.FixtureRequest, federation: Make, small_data: Dataset) -> Captured:
    scorer, nodes = request.param.split("-")
    run = federation(small_data, nodes=int(nodes), scorer=scorer, private_steps=2, **SETTINGS)
    grid = run.grid(CapturingGrid)
    outcome = run.run(grid).outcome
    assert run.failures == []
    return Captured(run, grid, outcome, make_algorithm(run.config, small_data.num_items))


def arrays_of(content: RecordDict) -> dict[str, dict[str, np.ndarray]]:
    return {
        name: {key: array.numpy() for key, array in record.items()}
        for name, record in content.array_records.items()
    }


# --- what travels --------------------------------------------------------------------------------


def test_only_declared_tensors_and_stated_counts_travel(captured: Captured) -> None:
    shared = captured.algorithm.tensors.shared
    rows = captured.algorithm.tensors.item_rows
    shapes = {name: tuple(value.shape) for name, value in captured.outcome.best.shared.items()}
    assert shapes.keys() == shared

    for request, reply in captured.grid.of_type("query"):
        assert list(request) == ["query"]
        assert set(request["query"]) == {"run"} | VERSION
        fields = {"site", "users", "num_items", "catalogue", "validation_users", "parts"} | VERSION
        fields |= {"test_users", "unknown", "fingerprint"}
        assert list(reply) == ["hello"]
        assert set(reply["hello"]) == fields

    for request, reply in captured.grid.of_type("train"):
        assert set(request) == {"request", "users", "shared"}
        assert set(request["request"]) == {"experiment", "round"} | VERSION
        assert set(request["users"]) == {"slots", "kept"}
        found = arrays_of(request)["shared"]
        assert {name: value.shape for name, value in found.items()} == shapes

        assert set(reply) == {"update", "metrics"}
        assert set(reply["metrics"]) == {"users", "loss", "touched", "round"}
        update = arrays_of(reply)["update"]
        expected = {f"0/{name}" for name in shared - rows}
        expected |= {f"0/{name}/{part}" for name in rows for part in ("index", "rows")}
        assert update.keys() == expected
        for key, value in update.items():
            name = key.split("/")[1]
            wanted = shapes[name]
            if key.endswith("/rows"):
                assert value.shape == (len(update[f"0/{name}/index"]), *wanted[1:])
            elif not key.endswith("/index"):
                assert value.shape == wanted

    sums = ("users", *(f"{name}.{part}" for name in NAMES for part in ("sum", "squares")))
    for request, reply in captured.grid.of_type("evaluate"):
        assert set(request) == {"request", "users", "shared"}
        names = {"experiment", "round", "split", "full"} | VERSION
        assert set(request["request"]) == names
        assert set(request["users"]) == {"accepted"}
        assert {n: v.shape for n, v in arrays_of(request)["shared"].items()} == shapes

        assert list(reply) == ["metrics"]
        rankings = ["sampled"] + ["full"] * request["request"]["full"]
        expected = {"trained"} | {f"{ranking}.{name}" for ranking in rankings for name in sums}
        assert set(reply["metrics"]) == expected
        assert all(isinstance(value, int | float) for value in reply["metrics"].values())


def test_a_reply_counts_only_the_users_it_was_asked_for(captured: Captured) -> None:
    for request, reply in captured.grid.of_type("train"):
        slots = arrays_of(request)["users"]["slots"]
        assert reply["metrics"]["users"] == [len(slots)]
        assert reply["metrics"]["touched"][0] > 0


def private_values(captured: Captured) -> dict[str, np.ndarray]:
    """Every state the nodes ever kept: initial, of both rounds and of the snapshots, (n, ...)."""
    run = captured.run
    initial = captured.algorithm.init_private(run.data.user_keys)
    kept = {}
    for name, value in initial.items():
        places = np.load(run.folder / f"{name}.npy")
        kept[name] = np.concatenate([value.numpy()[None], places])
    return kept


def test_no_message_holds_a_private_value(captured: Captured) -> None:
    """By value: no run of three numbers of anybody's vector or moments is in any message's bytes.

    Numbers of one vector are compared as bytes; zeros of untouched places are not a secret.
    """
    kept = private_values(captured)
    assert kept.keys() == captured.algorithm.tensors.private
    haystack = b"".join(captured.grid.bytes)
    item = captured.outcome.best.shared["items"][0, :3].numpy()
    assert item.tobytes() in haystack  # what does travel would be found
    looked_for = 0
    for name in ("user", "adam_mean", "adam_square"):
        vectors = kept[name].reshape(-1, kept[name].shape[-1])
        vectors = np.unique(vectors[(vectors != 0).any(1)], axis=0)
        for vector in vectors:
            for start in range(len(vector) - 2):
                window = vector[start : start + 3]
                if (window != 0).all():
                    looked_for += 1
                    assert window.tobytes() not in haystack
    assert looked_for > 100


def test_no_array_has_the_size_or_name_of_a_private_one(captured: Captured) -> None:
    private = captured.algorithm.tensors.private
    users = captured.run.data.num_users
    for content in (m.content for m in (*captured.grid.down, *captured.grid.up)):
        for record, arrays in arrays_of(content).items():
            for key, value in arrays.items():
                assert not set(key.split("/")) & private
                # Vectors are as long as item rows (NeuMF): then only rows of items may be so.
                per_user = record == "users" or key.startswith(("items", "0/items"))
                assert per_user or value.shape[:1] != (users,)


def test_no_id_and_no_key_of_a_user_is_in_a_message(captured: Captured) -> None:
    haystack = b"".join(captured.grid.bytes)
    for mark in ID_MARKS:
        assert mark not in haystack
    for key in captured.run.data.user_keys:
        assert key.tobytes() not in haystack
        assert str(int(key)).encode() not in haystack
    for user in captured.run.data.user_ids:
        assert str(user).encode() not in haystack


def test_held_out_items_and_ranks_stay_on_the_node(captured: Captured) -> None:
    """A node of several users tells sums; nothing in an evaluation reply is a list."""
    for _, reply in captured.grid.of_type("evaluate"):
        assert not reply.array_records
        assert not any(isinstance(value, list) for value in reply["metrics"].values())


# --- the other algorithms ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", [*(name for name in ALGORITHMS if name != "fedrecgel"), "fedncf:change"]
)
def test_private_values_travel_only_where_an_algorithm_declares_it(
    federation: Make, small_data: Dataset, name: str
) -> None:
    """U083: one node for each user, where sums hide nothing."""
    name, _, sends = name.partition(":")
    known = {*ALGORITHMS[name].config_class.__dataclass_fields__}
    more = {**SETTINGS, "rounds": 3, "fraction": 1.0, "item_lr": 0.01, "clusters": 3}
    settings = {key: value for key, value in more.items() if key in known}
    settings |= {"sends": sends} if sends else {}
    run = federation(small_data, name, nodes=24, **settings)
    grid = run.grid(CapturingGrid)
    run.run(grid)
    algorithm = make_algorithm(run.config, small_data.num_items)
    tensors = algorithm.tensors
    assert bool(tensors.uploaded) == (name in ("cofedrec", "perfedrec"))
    for request, reply in grid.of_type("train"):
        assert set(arrays_of(request)["shared"]) == tensors.shared
        assert set(arrays_of(request).get("addressed", ())) <= tensors.addressed
        assert {key.split("/")[1] for key in arrays_of(reply)["update"]} == tensors.sent
    haystack, found = b"".join(grid.bytes), set()
    looked_for = 0
    for tensor in sorted(tensors.private):
        kept = np.load(run.folder / f"{tensor}.npy")
        if kept.dtype.kind != "f" or kept.shape[-1] < 3:
            continue
        vectors = kept.reshape(-1, kept.shape[-1])
        vectors = np.unique(vectors[(vectors[:, :3] != 0).all(1), :3], axis=0)
        looked_for += len(vectors)
        if any(vector.tobytes() in haystack for vector in vectors):
            found.add(tensor)
    assert looked_for >= 24
    assert found == tensors.uploaded


def test_what_leaves_the_device_needs_a_declaration(
    federation: Make, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PerFedRec without the line that says that its user rows travel."""

    class Quiet(PerFedRec):
        def __init__(self, config: Any, num_items: int) -> None:
            super().__init__(config, num_items)
            self.tensors = dataclasses.replace(self.tensors, uploaded=frozenset())

    monkeypatch.setitem(ALGORITHMS, "perfedrec", Quiet)
    site_module._algorithm.cache_clear()
    run = federation(small_data, "perfedrec", rounds=1)
    with pytest.raises(FederationError, match="'user' may not travel"):
        run.run()
    site_module._algorithm.cache_clear()


# --- default deny --------------------------------------------------------------------------------

TENSORS = Tensors(frozenset({"items", "w"}), frozenset({"items"}), frozenset({"user"}))
ROWS = {"items": (torch.tensor([1]), torch.ones(1, 2))}


@pytest.mark.parametrize("name", ["user", "adam_mean", "anything"])
def test_an_undeclared_tensor_is_not_packed(name: str) -> None:
    update = Update(ROWS, {"w": torch.ones(2), name: torch.ones(2)}, users=1)
    with pytest.raises(FederationError, match=f"'{name}'"):
        pack_train_reply(TrainReply([update], 1), TENSORS)
    rows = {**ROWS, name: ROWS["items"]}
    with pytest.raises(FederationError, match=f"'{name}'"):
        pack_train_reply(TrainReply([Update(rows, {}, users=1)], 1), TENSORS)


@pytest.mark.parametrize("name", ["user", "adam_mean", "anything"])
def test_an_undeclared_tensor_is_not_unpacked(name: str) -> None:
    good = pack_train_reply(TrainReply([Update(ROWS, {"w": torch.ones(2)}, users=1)], 1), TENSORS)
    unpack_train_reply(good, TENSORS)
    for key in (f"0/{name}", f"0/{name}/rows", f"0/w/{name}", f"1/{name}", name):
        arrays = {**dict(good["update"]), key: Array(np.ones(2, np.float32))}
        bad = RecordDict({"update": ArrayRecord(arrays), "metrics": good["metrics"]})
        with pytest.raises(ReplyError, match="may not travel"):
            unpack_train_reply(bad, TENSORS)


class Leaky(FedNCF):
    """Puts the user's vector into the update."""

    name: ClassVar[str] = "fedncf"

    def block_update(self, *args: Any) -> tuple[Update, State]:
        update, state = super().block_update(*args)
        update.dense["user"] = state["user"].sum(0)
        return update, state


class Diary(FedNCF):
    """Keeps a private tensor more, and does not declare it."""

    MARK: ClassVar[float] = 1.2345678

    def init_private(self, keys: Keys) -> State:
        return {**super().init_private(keys), "diary": torch.full((len(keys), 3), self.MARK)}

    def block_update(
        self, download: Any, private: State, data: Interactions, round: int
    ) -> tuple[Update, State]:
        rest = {name: value for name, value in private.items() if name != "diary"}
        update, state = super().block_update(download, rest, data, round)
        return update, {**state, "diary": private["diary"]}


class Chatty(FedNCF):
    """Puts a tensor more among those the server sends, and does not declare it."""

    def init_server(self) -> ServerState:
        server = super().init_server()
        server.shared["gossip"] = torch.ones(3)
        return server


def swap_in(monkeypatch: pytest.MonkeyPatch, algorithm: type) -> None:
    monkeypatch.setitem(ALGORITHMS, "fedncf", algorithm)
    site_module._algorithm.cache_clear()


def test_an_algorithm_that_sends_a_private_tensor_stops_in_round_1(
    federation: Make, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_in(monkeypatch, Leaky)
    run = federation(small_data, "fedncf", nodes=2, scorer="dot", **SETTINGS)
    grid = run.grid(CapturingGrid)
    with pytest.raises(FederationError, match=r"round 1: .*'user'"):
        run.run(grid)
    assert all(reply.has_error() for reply in grid.up[2:])


def test_a_private_tensor_that_nobody_declared_stays_on_the_node(
    federation: Make, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_in(monkeypatch, Diary)
    run = federation(small_data, "fedncf", nodes=2, scorer="dot", **SETTINGS)
    grid = run.grid(CapturingGrid)
    run.run(grid)
    assert run.failures == []
    haystack = b"".join(grid.bytes)
    assert b"diary" not in haystack
    assert np.float32(Diary.MARK).tobytes() not in haystack
    assert np.load(run.folder / "diary.npy").max() == np.float32(Diary.MARK)


def test_a_tensor_that_the_server_may_not_send_stops_the_run(
    federation: Make, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    swap_in(monkeypatch, Chatty)
    run = federation(small_data, "fedncf", nodes=2, scorer="dot", **SETTINGS)
    grid = run.grid(CapturingGrid)
    with pytest.raises(FederationError, match="'gossip'"):
        run.run(grid)
    assert b"gossip" not in b"".join(grid.bytes)


def test_a_node_refuses_tensors_that_its_algorithm_does_not_declare(
    federation: Make, small_data: Dataset
) -> None:
    class Meddling(CapturingGrid):
        """A server that sends more than the algorithm has."""

        def _answer(self, message: Message) -> Message:
            if "shared" in message.content:
                arrays = dict(message.content["shared"])
                arrays["probe"] = Array(np.ones(3, np.float32))
                message.content["shared"] = ArrayRecord(arrays)
            return super()._answer(message)

    run = federation(small_data, "fedncf", nodes=2, scorer="dot", **SETTINGS)
    with pytest.raises(FederationError, match="'probe'"):
        run.run(run.grid(Meddling))


# --- files and logs ------------------------------------------------------------------------------


def public_files(folder: Path) -> list[Path]:
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and "private" not in path.relative_to(folder).parts
    ]


def test_files_outside_private_and_the_log_hold_no_user(
    small_data: Dataset,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    words = ["simulate", "--data", str(small_data.path), "--out", str(tmp_path / "run")]
    more = ["--nodes", "3", "--rounds", "2", "--preset", "paper", "--set", "scorer=dot"]
    assert main([*words, *more, "--set", "embedding-dim=4", "--set", "fraction=1"]) == 0
    printed = capfd.readouterr()
    files = public_files(tmp_path / "run")
    names = {path.name for path in files}
    assert {"config.json", "metrics.jsonl", "result.json", "model.safetensors"} <= names
    contents = {path.name: path.read_bytes() for path in files}
    contents["log"] = caplog.text.encode()
    contents["screen"] = (printed.out + printed.err).encode()
    for name, content in contents.items():
        for mark in ID_MARKS:
            assert mark not in content, name
    vectors = np.load(tmp_path / "run" / "private" / "user.npy")
    vectors = vectors.reshape(-1, vectors.shape[-1])
    for vector in np.unique(vectors[(vectors != 0).any(1)], axis=0):
        for name, content in contents.items():
            assert vector[:3].tobytes() not in content, name


def test_nothing_of_a_run_counts_or_lists_single_users(small_data: Dataset, tmp_path: Path) -> None:
    """result.json and metrics.jsonl have no list as long as there are users."""
    settings = {"preset": "paper", "rounds": 2, "scorer": "dot", "embedding_dim": 4}
    result = simulate(small_data, tmp_path / "run", nodes=3, **settings)
    lines = [json.loads(x) for x in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]

    def walk(value: Any) -> Iterator[int]:
        if isinstance(value, dict):
            for part in value.values():
                yield from walk(part)
        elif isinstance(value, list):
            yield len(value)
            for part in value:
                yield from walk(part)

    assert max([0, *walk(result.values), *walk(dict(enumerate(lines)))]) < small_data.num_users


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_private_state_is_readable_by_its_owner_alone(
    small_data: Dataset, tmp_path: Path, mask: int
) -> None:
    before = os.umask(mask)
    try:
        simulate(small_data, tmp_path / "run", rounds=1, scorer="dot", embedding_dim=4, nodes=2)
    finally:
        os.umask(before)
    private = tmp_path / "run" / "private"
    assert private.stat().st_mode & 0o777 == 0o700
    files = [path for path in private.rglob("*") if path.is_file()]
    assert len(files) >= 6
    for path in files:
        assert path.stat().st_mode & 0o777 == 0o600, path.name


def test_the_errors_of_a_node_do_not_name_its_users(
    federation: Make, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that was lost: the reply says how many users, not who."""
    run = federation(small_data, nodes=2, scorer="dot", **{**SETTINGS, "fraction": 1.0})
    grid = run.grid(CapturingGrid)

    def lose(line: Any) -> None:
        rounds = np.load(run.folder / "rounds.npy", mmap_mode="r+")
        rounds[:] = -1
        rounds.flush()

    from fedrecgel.server.strategy import FedRecStrategy

    with pytest.raises(FederationError, match="private state of") as caught:
        FedRecStrategy(run.config, min_nodes=2, on_round=lose).start(grid)
    everything = b"".join(grid.bytes) + str(caught.value).encode()
    assert not any(mark in everything for mark in ID_MARKS)
    assert "\n" not in str(caught.value)


def test_metric_records_of_evaluation_are_refused_when_they_hold_lists() -> None:
    from fedrecgel.common.records import unpack_metrics

    with pytest.raises(ReplyError):
        unpack_metrics(RecordDict({"metrics": MetricRecord({"sampled.users": [1, 2]})}))


def test_settings_in_a_message_are_those_of_the_config(captured: Captured) -> None:
    """The experiment names no path and no host, only an opaque id, settings and sizes."""
    for request, _ in captured.grid.of_type("train"):
        experiment = json.loads(request["request"]["experiment"])
        assert set(experiment) == {"id", "algorithm", "settings", "num_items", "catalogue"}
        assert experiment["settings"] == captured.run.config.to_flat()
        assert make_config(experiment["algorithm"], experiment["settings"]) == captured.run.config
