"""What travels between server and nodes, and the only code that packs and unpacks it.

Requests and replies are dataclasses (`fedrecgel.common.requests`); on the wire they are Flower
records. Nothing but the tensors that an algorithm declares may be packed or unpacked
(`fedrecgel.common.state.Tensors`): a tensor that somebody adds to a client's state is not sent by
accident.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from torch import Tensor

from fedrecgel import __version__
from fedrecgel.common.algorithms.base import refuse_averaging
from fedrecgel.common.algorithms.registry import make_algorithm
from fedrecgel.common.array_codec import from_array, to_array
from fedrecgel.common.config import Config
from fedrecgel.common.errors import FederationError, ReplyError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.requests import EvaluateRequest, Experiment, TrainReply, TrainRequest
from fedrecgel.common.state import State, Tensors, Update, to_tensor

CPU = torch.device("cpu")
MESSAGES = 2
"""Number of the format of all messages; raised when a record's names or meaning change."""


def refuse_undeclared(names: Iterable[str], declared: frozenset[str]) -> None:
    """Default deny: only tensors that the algorithm declares for this use may travel.

    Raises
    ------
    FederationError
        Naming a tensor that is not among them; not an assertion, which ``python -O`` leaves out.
    """
    for name in sorted(set(names) - declared):
        raise FederationError(
            f"tensor '{name}' may not travel here; the algorithm declares {sorted(declared)}"
        )


def pack_state(state: State) -> ArrayRecord:
    """Tensors as arrays, for packing once and sending to many nodes."""
    return ArrayRecord(
        {name: to_array(value.detach().cpu().numpy()) for name, value in state.items()}
    )


def initial_arrays(config: Config, num_items: int) -> ArrayRecord:
    """The shared tensors before round 1, for a strategy of Flower's own.

    Raises
    ------
    ConfigError
        When the algorithm cannot be run by such a strategy.
    """
    algorithm = make_algorithm(config, num_items)
    refuse_averaging(algorithm)
    return pack_state(algorithm.init_server().shared)


def settings_record(config: Config) -> ConfigRecord:
    """A `Config` as ``train_config`` and ``evaluate_config`` of a strategy of Flower's own."""
    values: dict[str, Any] = {"algorithm": config.algorithm, **config.to_flat()}
    return ConfigRecord(values)


def unpack_state(record: ArrayRecord) -> State:
    """Tensors of an array record; they share its memory."""
    return {key: to_tensor(from_array(array), CPU) for key, array in record.items()}


def pack_train_request(request: TrainRequest, shared: ArrayRecord) -> RecordDict:
    """As Flower records, with the shared tensors already packed."""
    content = _head(request.experiment, {"round": request.round}, shared, request.addressed)
    numbers = {"slots": request.slots, "kept": request.kept}
    content["users"] = _integers(numbers | _which(request))
    return content


def unpack_train_request(content: RecordDict) -> TrainRequest:
    """From Flower records; tensors share the message's memory."""
    experiment, values = _read_head(content)
    users = record_of(content, ArrayRecord, "users")
    return TrainRequest(
        experiment,
        int(values["round"]),
        from_array(users["slots"]),
        from_array(users["kept"]),
        _unpack_state(content, "shared"),
        _unpack_state(content, "addressed"),
        _read_which(users),
    )


def pack_evaluate_request(request: EvaluateRequest, shared: ArrayRecord) -> RecordDict:
    """As Flower records, with the shared tensors already packed."""
    names = ("round", "split", "full")
    values = {name: getattr(request, name) for name in names}
    content = _head(request.experiment, values, shared, request.addressed)
    content["users"] = _integers({"accepted": request.accepted} | _which(request))
    return content


def unpack_evaluate_request(content: RecordDict) -> EvaluateRequest:
    """From Flower records; tensors share the message's memory."""
    experiment, values = _read_head(content)
    users = record_of(content, ArrayRecord, "users")
    return EvaluateRequest(
        experiment,
        accepted=from_array(users["accepted"]),
        shared=_unpack_state(content, "shared"),
        addressed=_unpack_state(content, "addressed"),
        which=_read_which(users),
        **values,
    )


def pack_train_reply(reply: TrainReply, tensors: Tensors) -> RecordDict:
    """As Flower records: one array record, one metric record.

    Raises
    ------
    FederationError
        When an update holds anything but declared tensors: a defect of the algorithm.
    """
    arrays: dict[str, Array] = {}
    for number, update in enumerate(reply.updates):
        refuse_undeclared(update.dense, tensors.sent - tensors.item_rows)
        refuse_undeclared(update.rows, tensors.sent & tensors.item_rows)
        for name, (index, values) in update.rows.items():
            arrays[f"{number}/{name}/index"] = to_array(index.numpy())
            arrays[f"{number}/{name}/rows"] = to_array(values.cpu().numpy())
        for name, value in update.dense.items():
            arrays[f"{number}/{name}"] = to_array(value.cpu().numpy())
    metrics = MetricRecord(
        {
            "users": [update.users for update in reply.updates],
            "loss": [float(update.loss) for update in reply.updates],
            "touched": [update.touched for update in reply.updates],
            "round": reply.round,
        }
    )
    return RecordDict({"update": ArrayRecord(arrays), "metrics": metrics})


def unpack_train_reply(content: RecordDict, tensors: Tensors) -> TrainReply:
    """From Flower records.

    Raises
    ------
    ReplyError
        When the reply has parts or names that it may not have. Shapes and values are not judged
        here (`fedrecgel.server.acceptance`).
    """
    arrays = record_of(content, ArrayRecord, "update")
    metrics = record_of(content, MetricRecord, "metrics")
    columns = [metrics.get(name) for name in ("users", "loss", "touched")]
    if not all(isinstance(column, list) for column in columns) or len(set(map(len, columns))) != 1:
        raise ReplyError("metrics of the reply are missing or of unequal length")
    if any(type(count) is not int or count < 0 for count in (*columns[0], *columns[2])):
        raise ReplyError("counts of the reply are not whole numbers from 0")
    updates = [
        Update(users=users, loss=float(loss), touched=touched)
        for users, loss, touched in zip(*columns, strict=True)
    ]
    rows: dict[tuple[int, str], dict[str, Tensor]] = {}
    for key, array in arrays.items():
        number, name, part = _split_key(key, len(updates), tensors)
        try:
            tensor = to_tensor(from_array(array), CPU)
        except (ValueError, TypeError):
            raise ReplyError(f"array '{key}' of the reply cannot be read") from None
        if part is None:
            updates[number].dense[name] = tensor
        else:
            rows.setdefault((number, name), {})[part] = tensor
    for (number, name), parts in rows.items():
        if parts.keys() != {"index", "rows"}:
            raise ReplyError(f"rows of '{name}' come without their index, or the reverse")
        updates[number].rows[name] = (parts["index"], parts["rows"])
    round = metrics.get("round")
    if not isinstance(round, int):
        raise ReplyError("the reply does not say for which round it is")
    return TrainReply(updates, round)


def pack_metrics(values: dict[str, float | int]) -> RecordDict:
    """Sums of metrics as Flower records."""
    return RecordDict({"metrics": MetricRecord(dict(values))})


def unpack_metrics(content: RecordDict) -> dict[str, float | int]:
    """Sums of metrics from Flower records."""
    record = record_of(content, MetricRecord, "metrics")
    values = {name: value for name, value in record.items() if isinstance(value, int | float)}
    if len(values) != len(record) or not np.isfinite(list(values.values())).all():
        raise ReplyError("metrics of the reply are not finite numbers")
    return values


def _split_key(key: str, updates: int, tensors: Tensors) -> tuple[int, str, str | None]:
    number, _, rest = key.partition("/")
    name, _, part = rest.partition("/")
    good = part in ("index", "rows") if name in tensors.item_rows else part == ""
    # Digits as `pack_train_reply` writes them: "²" is one too for Python, and "00" is not "0".
    place = int(number) if number.isascii() and number.isdigit() and len(number) < 10 else -1
    if (
        place < 0
        or str(place) != number
        or place >= updates
        or name not in tensors.sent
        or not good
    ):
        raise ReplyError(f"the reply holds an array that may not travel: '{key}'")
    return place, name, part or None


def _head(
    experiment: Experiment, values: dict[str, Any], shared: ArrayRecord, addressed: State
) -> RecordDict:
    record = ConfigRecord({"experiment": experiment.key, **spoken(), **values})
    content = RecordDict({"request": record, "shared": shared})
    if addressed:
        content["addressed"] = pack_state(addressed)
    return content


def _read_head(content: RecordDict) -> tuple[Experiment, dict[str, Any]]:
    record = dict(record_of(content, ConfigRecord, "request"))
    refuse_other_version(record, "the server", "this node")
    try:
        experiment = Experiment.from_key(str(record.pop("experiment")))
    except (KeyError, TypeError, ValueError):
        raise FederationError(
            "the server's message is not understood; run the same fedrecgel version on both sides"
        ) from None
    return experiment, record


def spoken() -> dict[str, Any]:
    """What every first record says: the version that packed it."""
    return {"version": __version__, "messages": MESSAGES}


def refuse_other_version(record: dict[str, Any], they: str, we: str) -> None:
    """Take the version out of a record; another one may compute other numbers."""
    theirs = {name: record.pop(name, "before 0.1.0") for name in spoken()}
    if theirs != spoken():
        raise FederationError(
            f"{they} runs fedrecgel {theirs['version']} (messages {theirs['messages']}), {we} "
            f"{__version__} (messages {MESSAGES}); install the same version on both"
        )


def record_of(content: RecordDict, kind: type, name: str) -> Any:  # noqa: ANN401 - of that kind
    """A record by name. Flower's views by kind would be made anew for every look."""
    record = content.get(name)
    if not isinstance(record, kind):
        raise ReplyError(f"the message has no record '{name}'")
    return record


def _which(request: TrainRequest | EvaluateRequest) -> dict[str, Ints]:
    return {} if request.which is None else {"which": request.which}


def _read_which(users: ArrayRecord) -> Ints | None:
    return from_array(users["which"]) if "which" in users else None


def _integers(values: dict[str, Ints]) -> ArrayRecord:
    return ArrayRecord(
        {name: to_array(np.asarray(v, dtype=np.int64)) for name, v in values.items()}
    )


def _unpack_state(content: RecordDict, name: str) -> State:
    return unpack_state(record_of(content, ArrayRecord, name)) if name in content else {}
