"""Messages: round trips, and refusal of everything damaged or hostile with one short line."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedrecgel.common.errors import FederationError, FedRecError, ReplyError
from fedrecgel.common.greeting import MOST_USERS, Hello, is_name
from fedrecgel.common.records import (
    pack_evaluate_request,
    pack_metrics,
    pack_state,
    pack_train_reply,
    pack_train_request,
    unpack_evaluate_request,
    unpack_metrics,
    unpack_state,
    unpack_train_reply,
    unpack_train_request,
)
from fedrecgel.common.requests import EvaluateRequest, Experiment, TrainReply, TrainRequest
from fedrecgel.common.state import Tensors, Update

TENSORS = Tensors(frozenset({"items", "w", "tower.0"}), frozenset({"items"}), frozenset({"user"}))
EXPERIMENT = Experiment("abc", "fedrecgel", {"rounds": 3, "local-lr": 0.1, "scorer": "dot"}, 9)
DTYPES = st.sampled_from([np.float32, np.float64, np.int64])


def travelled(content: RecordDict) -> RecordDict:
    """The content as it comes out of Flower's own serialisation."""
    proto = recorddict_to_proto(content)
    return recorddict_from_proto(type(proto).FromString(proto.SerializeToString()))


# --- round trips ---------------------------------------------------------------------------------


@given(
    site=st.text(max_size=20),
    users=st.integers(0, 10**9),
    num_items=st.integers(0, 10**9),
    catalogue=st.text(max_size=64),
    validation=st.integers(0, 10**9),
)
def test_hello_round_trips(
    site: str, users: int, num_items: int, catalogue: str, validation: int
) -> None:
    hello = Hello(site, users, num_items, catalogue, validation)
    if not is_name(site):
        with pytest.raises(ReplyError):
            Hello.unpack(travelled(hello.pack()))
    elif validation > users or users > MOST_USERS:
        with pytest.raises(ReplyError, match="more users than a node may host"):
            Hello.unpack(travelled(hello.pack()))
    else:
        assert Hello.unpack(travelled(hello.pack())) == hello


@given(
    st.dictionaries(
        st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=8),
        DTYPES.flatmap(
            lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, max_dims=3, min_side=0))
        ),
        max_size=4,
    )
)
def test_state_round_trips_bit_for_bit(state: dict[str, np.ndarray]) -> None:
    tensors = {name: torch.from_numpy(value.copy()) for name, value in state.items()}
    content = travelled(RecordDict({"shared": pack_state(tensors)}))
    found = unpack_state(content["shared"])
    assert found.keys() == state.keys()
    for name, value in state.items():
        assert tuple(found[name].shape) == value.shape
        assert found[name].numpy().dtype == value.dtype
        assert found[name].numpy().tobytes() == value.tobytes()


@given(slots=st.lists(st.integers(0, 2**40), max_size=6), round=st.integers(1, 10**6))
def test_train_requests_round_trip(slots: list[int], round: int) -> None:
    shared = {"w": torch.arange(4.0)}
    addressed = {"own": torch.ones(len(slots), 2, dtype=torch.float64)} if slots else {}
    integers = np.array(slots, dtype=np.int64)
    kept = np.stack([integers + 1, integers + 2])
    which = np.arange(len(slots)) - 1 if slots else None
    request = TrainRequest(EXPERIMENT, round, integers, kept, shared, addressed, which)
    found = unpack_train_request(travelled(pack_train_request(request, pack_state(shared))))
    assert (found.experiment, found.round) == (EXPERIMENT, round)
    assert found.slots.dtype == found.kept.dtype == np.int64
    assert found.slots.tolist() == slots
    assert found.kept.tolist() == kept.tolist()
    assert found.shared["w"].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert found.addressed.keys() == addressed.keys()
    assert found.which is None if which is None else found.which.tolist() == which.tolist()


@pytest.mark.parametrize("full", [True, False])
def test_evaluate_requests_round_trip(full: bool) -> None:
    shared = {"w": torch.arange(4.0)}
    request = EvaluateRequest(EXPERIMENT, 4, "validation", full, np.arange(3), shared)
    found = unpack_evaluate_request(travelled(pack_evaluate_request(request, pack_state(shared))))
    assert (found.experiment, found.round, found.split) == (EXPERIMENT, 4, "validation")
    assert found.full is full
    assert found.accepted.tolist() == [0, 1, 2]
    assert found.addressed == {}


@st.composite
def updates(draw: st.DrawFn) -> Update:
    index = sorted(draw(st.sets(st.integers(0, 50), max_size=5)))
    rows = draw(npst.arrays(np.float32, (len(index), 3)))
    dense = draw(npst.arrays(np.float64, npst.array_shapes(max_dims=2, max_side=3)))
    return Update(
        {"items": (torch.tensor(index, dtype=torch.int64), torch.from_numpy(rows))},
        {"w": torch.from_numpy(dense), "tower.0": torch.ones(1)},
        draw(st.integers(0, 10**9)),
        draw(st.floats(allow_nan=False, allow_infinity=False)),
        draw(st.integers(0, 10**12)),
    )


@settings(deadline=None)
@given(st.lists(updates(), min_size=1, max_size=3))
def test_train_replies_round_trip(sent: list[Update]) -> None:
    found = unpack_train_reply(travelled(pack_train_reply(TrainReply(sent, 1), TENSORS)), TENSORS)
    assert len(found.updates) == len(sent)
    for one, other in zip(found.updates, sent, strict=True):
        assert (one.users, one.loss, one.touched) == (other.users, other.loss, other.touched)
        assert one.rows.keys() == other.rows.keys()
        assert one.dense.keys() == other.dense.keys()
        pairs = [(one.dense[n], other.dense[n]) for n in other.dense]
        pairs += [pair for n in other.rows for pair in zip(one.rows[n], other.rows[n], strict=True)]
        for a, b in pairs:
            assert a.dtype == b.dtype
            assert a.numpy().tobytes() == b.numpy().tobytes()


def test_metrics_round_trip() -> None:
    values: dict[str, float | int] = {"users": 3, "hr@10": 1.5}
    assert unpack_metrics(travelled(pack_metrics(values))) == values


def test_received_tensors_share_the_messages_memory() -> None:
    content = RecordDict({"shared": pack_state({"w": torch.arange(1000.0)})})
    one, two = (unpack_state(content["shared"])["w"] for _ in range(2))
    assert one.data_ptr() == two.data_ptr()


# --- refusals ------------------------------------------------------------------------------------


def good_reply() -> RecordDict:
    update = Update(
        {"items": (torch.tensor([1]), torch.ones(1, 3))},
        {"w": torch.ones(2), "tower.0": torch.ones(1)},
        1,
        0.5,
        1,
    )
    return pack_train_reply(TrainReply([update], 1), TENSORS)


def reply_with(arrays: Mapping[str, Any] | None = None, **metrics: Any) -> RecordDict:
    good = good_reply()
    return RecordDict(
        {
            "update": ArrayRecord({**dict(good["update"]), **(arrays or {})}),
            "metrics": MetricRecord({**dict(good["metrics"]), **metrics}),
        }
    )


def assert_refused(content: RecordDict) -> str:
    with pytest.raises(ReplyError) as caught:
        unpack_train_reply(content, TENSORS)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "0/user",
        "0/items",
        "0/items/",
        "0/items/index/rows",
        "0/w/rows",
        "1/w",
        "-1/w",
        "0 /w",
        "/w",
        "w",
        "",
        "²/w",
        "\N{ARABIC-INDIC DIGIT ZERO}/w",
        "9" * 5000 + "/w",
        "00/w",
        "0x0/w",
        "0/../user",
        "0/W",
    ],
)
def test_names_that_may_not_travel_are_refused(key: str) -> None:
    message = assert_refused(reply_with({key: Array(np.ones(2, np.float32))}))
    assert "may not travel" in message


NPY = Array(np.ones(2, np.float32)).data


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        NPY[:20],
        NPY[:-1],
        NPY.replace(b"<f4", b"|O8"),
        NPY.replace(b"<f4", b"|V0"),
        NPY.replace(b"(2,)", b"(9,)"),
        NPY.replace(b"(2,)", b"(-1)"),
        NPY.replace(b"'shape'", b"'shapf'"),
        NPY.replace(b"{'descr'", b"{{descr'"),
        NPY.replace(b"{'descr'", b"('descr'"),
        b"\x93NUMPY\x03\x00" + NPY[8:],
        b"not an array at all",
    ],
)
def test_damaged_arrays_are_refused(data: bytes) -> None:
    array = Array("float32", (2,), "numpy.ndarray", data)
    assert "cannot be read" in assert_refused(reply_with({"0/w": array}))


def test_an_array_of_another_kind_is_refused() -> None:
    assert "cannot be read" in assert_refused(
        reply_with({"0/w": Array("float32", (2,), "torch.tensor", NPY)})
    )


def refusal(data: bytes) -> str:
    """Why these bytes of an array are refused; empty if they are taken. Nothing else may happen."""
    array = Array("float32", (2,), "numpy.ndarray", data)
    try:
        unpack_train_reply(reply_with({"0/w": array}), TENSORS)
    except ReplyError as error:
        return str(error)
    return ""


@settings(max_examples=300, deadline=None)
@given(place=st.integers(0, len(NPY) - 1), value=st.integers(0, 255), cut=st.integers(0, len(NPY)))
def test_any_damage_is_either_refused_or_an_array(place: int, value: int, cut: int) -> None:
    for data in (NPY[:place] + bytes([value]) + NPY[place + 1 :], NPY[:cut]):
        assert "\n" not in refusal(data)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_either_refused_or_an_array(data: bytes) -> None:
    for content in (data, NPY[:10] + data):
        assert "\n" not in refusal(content)


@pytest.mark.parametrize(
    "metrics",
    [
        {"users": 1},
        {"users": [1, 1]},
        {"loss": [0.5, 0.5]},
        {"touched": []},
        {"users": [float("nan")]},
        {"users": [float("inf")]},
        {"users": [1.5]},
        {"touched": [float("nan")]},
        {"touched": [-1]},
        {"users": [-1]},
    ],
)
def test_impossible_counts_are_refused(metrics: dict[str, Any]) -> None:
    assert_refused(reply_with(**metrics))


@pytest.mark.parametrize("missing", ["users", "loss", "touched"])
def test_missing_counts_are_refused(missing: str) -> None:
    content = good_reply()
    values = {name: value for name, value in content["metrics"].items() if name != missing}
    assert_refused(RecordDict({"update": content["update"], "metrics": MetricRecord(values)}))


@pytest.mark.parametrize("missing", ["update", "metrics"])
def test_missing_records_are_refused(missing: str) -> None:
    content = good_reply()
    del content[missing]
    assert f"no record '{missing}'" in assert_refused(content)


def test_records_of_another_kind_are_refused() -> None:
    content = good_reply()
    swapped = RecordDict({"update": content["metrics"], "metrics": content["update"]})
    assert_refused(swapped)


@pytest.mark.parametrize("part", ["index", "rows"])
def test_rows_without_their_index_are_refused(part: str) -> None:
    content = good_reply()
    arrays = {k: v for k, v in content["update"].items() if k != f"0/items/{part}"}
    refused = assert_refused(
        RecordDict({"update": ArrayRecord(arrays), "metrics": content["metrics"]})
    )
    assert "items" in refused


@pytest.mark.parametrize(
    "changes",
    [
        {"site": 3},
        {"users": -1},
        {"users": 1.0},
        {"num_items": "9"},
        {"validation_users": -5},
        {"extra": 1},
    ],
)
def test_an_odd_hello_is_refused(changes: dict[str, Any]) -> None:
    values = {**Hello("a", 1, 9, "hash", 1).pack().config_records["hello"], **changes}
    with pytest.raises(ReplyError, match="first query"):
        Hello.unpack(RecordDict({"hello": ConfigRecord(values)}))


@pytest.mark.parametrize("changes", [{"version": "9.9.9"}, {"messages": 99}])
def test_a_node_of_another_version_is_refused_in_one_line(changes: dict[str, Any]) -> None:
    values = {**Hello("lab", 1, 9, "hash", 1).pack().config_records["hello"], **changes}
    with pytest.raises(FederationError, match=r"node 'lab' runs fedrecgel .*same version") as found:
        Hello.unpack(RecordDict({"hello": ConfigRecord(values)}))
    assert "\n" not in str(found.value)


def test_a_node_that_does_not_say_its_version_is_refused() -> None:
    with pytest.raises(FederationError, match="node 'lab' runs fedrecgel before"):
        Hello.unpack(RecordDict({"hello": ConfigRecord(vars(Hello("lab", 1, 9, "hash", 1)))}))


@pytest.mark.parametrize("changes", [{"version": "9.9.9"}, {"messages": 99}])
def test_a_server_of_another_version_is_refused_in_one_line(changes: dict[str, Any]) -> None:
    experiment = Experiment("id", "fedncf", {}, 9)
    nobody = np.zeros((1, 0), dtype=np.int64)
    content = pack_train_request(TrainRequest(experiment, 1, nobody[0], nobody, {}), ArrayRecord())
    content.config_records["request"].update(changes)
    with pytest.raises(FederationError, match=r"the server runs fedrecgel .*same version"):
        unpack_train_request(content)


def test_no_hello_at_all_is_refused() -> None:
    with pytest.raises(ReplyError, match="no record 'hello'"):
        Hello.unpack(RecordDict())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [1.0, 2.0]])
def test_metrics_that_are_not_finite_numbers_are_refused(value: Any) -> None:
    with pytest.raises(ReplyError):
        unpack_metrics(RecordDict({"metrics": MetricRecord({"a": value})}))


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", "{}", json.dumps({**vars(EXPERIMENT), "x": 1})]
)
def test_a_damaged_experiment_is_one_line(text: str) -> None:
    request = TrainRequest(EXPERIMENT, 1, np.arange(1), np.zeros((1, 1), np.int64), {})
    content = pack_train_request(request, pack_state({}))
    content["request"]["experiment"] = text
    with pytest.raises(FederationError, match="same fedrecgel version on both sides"):
        unpack_train_request(travelled(content))


@pytest.mark.parametrize("name", ["request", "users"])
@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_request_without_its_parts_is_one_line(name: str, kind: str) -> None:
    if kind == "train":
        train = TrainRequest(EXPERIMENT, 1, np.arange(1), np.zeros((1, 1), np.int64), {})
        content = pack_train_request(train, pack_state({}))
    else:
        evaluate = EvaluateRequest(EXPERIMENT, 1, "test", True, np.arange(1), {})
        content = pack_evaluate_request(evaluate, pack_state({}))
    del content[name]
    unpack = unpack_train_request if kind == "train" else unpack_evaluate_request
    with pytest.raises(FedRecError, match=f"no record '{name}'"):
        unpack(content)


def test_equal_experiments_have_equal_keys() -> None:
    other = Experiment("abc", "fedrecgel", dict(reversed(EXPERIMENT.settings.items())), 9)
    assert other.key == EXPERIMENT.key
    assert Experiment("abd", "fedrecgel", EXPERIMENT.settings, 9).key != EXPERIMENT.key
