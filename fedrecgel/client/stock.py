"""Messages of Flower's own strategies (FedAvg, FedAdam, their wrappers), answered as they expect.

Such a strategy sends weights and takes weights back. A node answers ``w - g``: the weights less the
mean gradient of its users, or ``w + d`` where the algorithm sends a change of the weights, under
the same names, with ``num-examples``, the number of these users. The average of such replies is a
step of plain gradient descent with rate 1, or the algorithm's own average; a server optimiser
(FedAdam) takes the difference as its gradient. An algorithm that needs each user's own update is
refused. Settings come with the message (``train_config``,
``evaluate_config``) or stand in run-config.

Private state stays here and goes on from the user's latest round: these strategies do not say which
replies they accepted, so nothing can be undone.
"""

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedrecgel.client.evaluator import evaluate
from fedrecgel.client.site import Site, algorithm_of
from fedrecgel.client.trainer import train
from fedrecgel.common.algorithms.base import refuse_averaging
from fedrecgel.common.algorithms.registry import algorithm_class, make_algorithm
from fedrecgel.common.config import Config, kebab
from fedrecgel.common.errors import FederationError
from fedrecgel.common.hashing import mix
from fedrecgel.common.interactions import Ints
from fedrecgel.common.metrics import MetricSums
from fedrecgel.common.presets import preset_config
from fedrecgel.common.records import unpack_state
from fedrecgel.common.requests import EvaluateRequest, Experiment, TrainRequest
from fedrecgel.common.state import DTYPES, State, Update

NUM_EXAMPLES = "num-examples"


def is_stock(message: Message) -> bool:
    """Whether a message is of a strategy that knows nothing of ours."""
    return "request" not in message.content and len(message.content.array_records) == 1


@dataclass(frozen=True)
class _Asked:
    """What such a message says; ``shared`` is ``given`` in the settings' number format."""

    config: Config
    experiment: Experiment
    round: int
    given: State
    shared: State
    values: dict[str, Any]

    @classmethod
    def read(cls, message: Message, context: Context, site: Site) -> "_Asked":
        (arrays,) = message.content.array_records.values()
        values: dict[str, Any] = dict(context.run_config)
        for record in message.content.config_records.values():
            values.update(record)
        config = _config(values, site)
        run = f"flower-run-{message.metadata.run_id}"
        items, catalogue = site.data.num_items, site.catalogue
        experiment = Experiment(run, config.algorithm, config.to_flat(), items, catalogue)
        round = int(values.get("server-round", 1))
        # FedAdam and its like turn float32 weights into float64 ones.
        given, dtype = unpack_state(arrays), DTYPES[config.dtype]
        shared = {name: value.to(dtype) for name, value in given.items()}
        return cls(config, experiment, round, given, shared, values)


def train_stock(message: Message, context: Context, site: Site) -> RecordDict:
    """Train a share (``fraction``) of the node's users; reply with ``w - g`` or ``w + d``."""
    asked = _Asked.read(message, context, site)
    slots = _cohort(site, asked)
    nobody = np.zeros((1, len(slots)), dtype=np.int64)
    request = TrainRequest(asked.experiment, asked.round, slots, nobody, asked.shared)
    algorithm = algorithm_of(request, site)
    _refuse_other_shapes(asked.shared, algorithm.init_server().shared)
    request = replace(request, shared=algorithm.complete(asked.shared))
    store = site.store(asked.experiment, algorithm.private_template)
    nobody[0] = store.latest(site.users[slots])
    update = algorithm.as_weights(Update.total(train(site, request).updates), request.shared)
    users = max(1, update.users)
    sign = -1.0 if algorithm.sends == "gradient" else 1.0
    arrays = {name: value.clone() for name, value in asked.given.items()}
    for name, (index, rows) in update.rows.items():
        arrays[name][index] += sign * rows / users
    for name, value in update.dense.items():
        arrays[name] += sign * value / users
    metrics = MetricRecord({NUM_EXAMPLES: update.users, "train-loss": update.loss / users})
    packed = {name: Array(value.numpy()) for name, value in arrays.items()}
    return RecordDict({"arrays": ArrayRecord(packed), "metrics": metrics})


def evaluate_stock(message: Message, context: Context, site: Site) -> RecordDict:
    """Evaluate all users on ``split`` (default: validation); reply with means over them."""
    asked = _Asked.read(message, context, site)
    split = str(asked.values.get("split", "validation"))
    full = asked.config.select_by.startswith("full")
    request = EvaluateRequest(
        asked.experiment, asked.round, split, full, np.zeros(0, dtype=np.int64), asked.shared
    )
    algorithm = algorithm_of(request, site)
    store = site.store(asked.experiment, algorithm.private_template)
    request = EvaluateRequest(
        asked.experiment, asked.round, split, full, store.latest(site.users), asked.shared
    )
    flat = evaluate(site, request)
    found: dict[str, Any] = {}
    for ranking in ("sampled", "full") if full else ("sampled",):
        sums = MetricSums.from_flat(flat, f"{ranking}.")
        found[NUM_EXAMPLES] = sums.users
        for name, cell in sums.values().items():
            found[f"{ranking}.{name}"] = cell["value"] or 0.0
    return RecordDict({"metrics": MetricRecord(found)})


def _config(values: dict[str, Any], site: Site) -> Config:
    """Settings among the values; the others belong to somebody else."""
    name = str(values.get("algorithm") or "fedrecgel")
    known = {kebab(field.name) for field in fields(algorithm_class(name).config_class)}
    settings = {k: v for k, v in values.items() if k in known and v != ""}
    preset = str(values.get("preset") or "tuned")
    config = preset_config(name, preset, site.data.name, settings)
    refuse_averaging(make_algorithm(config, site.data.num_items))
    return config


def _cohort(site: Site, asked: _Asked) -> Ints:
    """The users who train in this round, ascending."""
    count = len(site.users)
    size = min(count, max(1, int(asked.config.fraction * count + 0.5)))
    order = mix("cohort", asked.config.seed, asked.round, 0, site.users)
    return np.sort(np.argsort(order, kind="stable")[:size])


def _refuse_other_shapes(given: State, wanted: State) -> None:
    for name, value in wanted.items():
        if name not in given or given[name].shape != value.shape:
            raise FederationError(
                f"the weights do not fit: '{name}' must be of shape {tuple(value.shape)}; begin "
                "with fedrecgel.initial_arrays and send the same settings to the nodes"
            )
