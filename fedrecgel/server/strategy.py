"""The Flower Strategy: rounds of training and evaluation over users, whatever carries the messages."""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from numpy.typing import NDArray

from fedrecgel.common.algorithms.base import Algorithm, ServerState
from fedrecgel.common.algorithms.registry import make_algorithm
from fedrecgel.common.config import Config
from fedrecgel.common.errors import ConfigError, FederationError, ReplyError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.metrics import MetricSums
from fedrecgel.common.records import (
    NO_SNAPSHOT,
    EvaluateRequest,
    Experiment,
    Hello,
    TrainRequest,
    pack_evaluate_request,
    pack_state,
    pack_train_request,
    unpack_metrics,
    unpack_state,
    unpack_train_reply,
)
from fedrecgel.common.state import State, Update
from fedrecgel.server.acceptance import check_reply
from fedrecgel.server.exchange import Failure, exchange
from fedrecgel.server.history import History, Tally, line_of
from fedrecgel.server.roster import Member, Roster

MAX_DROPPED = 3
"""Rounds in a row that may be dropped for want of good replies before the run stops."""


@dataclass
class Best:
    """The chosen round so far: its validation metric, and what the server needs to restore it."""

    round: int
    value: float
    shared: State
    trained_items: NDArray[np.bool_]
    trained_users: NDArray[np.bool_]


@dataclass(frozen=True)
class Outcome:
    """What a run ends with.

    Attributes
    ----------
    best
        The chosen round.
    selected_by
        Validation metric that chose it, or None where the last round is taken.
    history
        A line for each evaluated round.
    test
        Sums over the test users, by ``sampled`` and ``full``.
    failures
        Failed or refused replies over the whole run, by reason.
    """

    experiment: Experiment
    roster: Roster
    best: Best
    selected_by: str | None
    history: list[dict[str, Any]]
    test: dict[str, MetricSums]
    failures: dict[str, int]


class FedRecStrategy(Strategy):
    """Trains a `Config`'s algorithm over the users that the nodes host.

    Parameters
    ----------
    config
        Settings; its class says which algorithm.
    min_nodes
        Nodes to wait for before round 1.
    wait
        Seconds to wait for them.
    on_round
        Called after each round with its line of `metrics.jsonl` (evaluated or not).
    on_failure
        Called for each failed or refused reply, with the site's name.

    Examples
    --------
    In somebody's own ServerApp::

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            FedRecStrategy(make_config("fedrecgel", {"rounds": 20})).start(grid)
    """

    def __init__(
        self,
        config: Config,
        *,
        min_nodes: int = 1,
        wait: float = 60.0,
        on_round: Callable[[dict[str, Any]], None] | None = None,
        on_failure: Callable[[str, Failure], None] | None = None,
    ) -> None:
        self.config = config
        self.min_nodes = min_nodes
        self.wait = wait
        self.on_round = on_round or (lambda line: None)
        self.on_failure = on_failure or (lambda site, failure: None)
        self.outcome: Outcome | None = None

    # --- the run ---------------------------------------------------------------------------------

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run all rounds; choose one on validation; test it once.

        Flower's own loop cannot stop early, resume, or fold replies as they arrive, so this one
        replaces it. ``num_rounds`` and ``timeout`` override the settings; ``initial_arrays``
        replaces the initial shared tensors. ``outcome`` holds the details afterwards.
        """
        if train_config or evaluate_config:
            raise ConfigError("train_config and evaluate_config are not used; set them in Config")
        rounds = num_rounds or self.config.rounds
        self._timeout = timeout or self.config.round_timeout
        self._begin(grid, initial_arrays)
        result = Result(arrays=pack_state(self.server.shared))
        for round in range(1, rounds + 1):
            line = self._train(grid, round)
            self.history.passed(line)
            last = round == rounds
            if last or round % self.config.evaluate_every == 0:
                self._evaluate(grid, round, line, last)
                self.history.append(line)
            if evaluate_fn is not None:
                found = evaluate_fn(round, pack_state(self.server.shared))
                if found is not None:
                    result.evaluate_metrics_serverapp[round] = found
            self.on_round(line)
        self._finish(grid, result)
        return result

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord | None) -> None:
        self.roster = Roster(self._hellos(grid))
        self.algorithm: Algorithm[Any] = make_algorithm(self.config, self.roster.num_items)
        self.server: ServerState = self.algorithm.init_server()
        if initial_arrays is not None:
            self._load(initial_arrays)
        self.experiment = Experiment(
            uuid.uuid4().hex, self.config.algorithm, self.config.to_flat(), self.roster.num_items
        )
        self.history = History()
        self.best: Best | None = None
        self._trained_items: NDArray[np.bool_] = np.zeros(self.roster.num_items, dtype=bool)
        self._dropped = 0
        self._sites = {member.node_id: member.site for member in self.roster.members}
        self._has_validation = self.roster.validation_users > 0

    def _hellos(self, grid: Grid) -> dict[int, Hello]:
        """Wait for nodes, ask each what it hosts."""
        deadline = time.monotonic() + self.wait
        while len(nodes := list(grid.get_node_ids())) < self.min_nodes:
            if time.monotonic() > deadline:
                raise FederationError(
                    f"{len(nodes)} of {self.min_nodes} nodes after {self.wait:g} s; start more or lower min-nodes"
                )
            time.sleep(0.2)
        messages = [Message(RecordDict(), node, MessageType.QUERY) for node in nodes]
        hellos, tally = {}, Tally()
        for reply in exchange(grid, messages, self.wait, self._failed(tally)):
            hellos[reply.metadata.src_node_id] = Hello.unpack(reply.content)
        if len(hellos) < self.min_nodes:
            raise FederationError(
                f"{len(hellos)} of {self.min_nodes} nodes answered; {tally.first_line()}"
            )
        return hellos

    def _load(self, arrays: ArrayRecord) -> None:
        given = unpack_state(arrays)
        for name, value in self.server.shared.items():
            if name not in given or given[name].shape != value.shape:
                raise ConfigError(
                    f"initial_arrays do not fit: '{name}' must be of shape {tuple(value.shape)}"
                )
            value.copy_(given[name])

    # --- training --------------------------------------------------------------------------------

    def _train(self, grid: Grid, round: int) -> dict[str, Any]:
        began = time.perf_counter()
        self._tally = Tally()
        messages = self.configure_train(round, pack_state(self.server.shared), ConfigRecord(), grid)
        replies = exchange(grid, messages, self._timeout, self._failed(self._tally))
        _, metrics = self.aggregate_train(round, replies)
        self.history.count(self._tally)
        line = line_of(round, metrics, self._tally)
        line["seconds"] = time.perf_counter() - began
        return line

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to each node that hosts users of the round's cohort."""
        users = self.roster.cohort(self.config.seed, server_round, self.config.fraction)
        self._parts = {m.node_id: (m, part) for m, part in self.roster.split(users)}
        self._cohort = len(users)
        return list(self._train_messages(server_round, arrays))

    def _train_messages(self, round: int, arrays: ArrayRecord) -> Iterator[Message]:
        for member, users in self._parts.values():
            download = self.algorithm.download(self.server, torch.from_numpy(users))
            request = TrainRequest(
                self.experiment,
                round,
                users - member.first,
                self.roster.accepted[users],
                download.shared,
                download.addressed,
            )
            content = pack_train_request(request, arrays)
            yield Message(content, member.node_id, MessageType.TRAIN, group_id=str(round))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold good replies in, in the order of the sites, and step the server's state."""
        folded = _InOrder(list(self._parts))
        accepted: dict[int, Ints] = {}
        updates: dict[int, Update] = {}
        for reply in replies:
            node_id = reply.metadata.src_node_id
            try:
                users, found = self._accept(server_round, reply, accepted)
            except ReplyError as error:
                self._failed(self._tally)(Failure(node_id, f"refused: {error}"))
                continue
            accepted[node_id] = users
            if self.algorithm.reduce == "sum":
                folded.put(node_id, found[0])
            else:
                updates.update(zip(users.tolist(), found, strict=True))
        self._tally.replies = len(accepted)
        total = sum(len(users) for users in accepted.values())
        if total == 0 or total < self.config.min_replies * self._cohort:
            return self._drop(server_round, total)
        self._dropped = 0
        if self.algorithm.reduce == "sum":
            updates = {-1: folded.total()}
        metrics = self._metrics(updates, total)
        self.algorithm.aggregate(self.server, updates, server_round)
        for users in accepted.values():
            self.roster.accepted[users] = server_round
        for update in updates.values():
            for index, _ in update.rows.values():
                self._trained_items[index.numpy()] = True
        return None, metrics

    def _accept(
        self, round: int, reply: Message, accepted: dict[int, Ints]
    ) -> tuple[Ints, list[Update]]:
        node_id = reply.metadata.src_node_id
        if node_id not in self._parts or node_id in accepted:
            raise ReplyError("not asked for")
        users = self._parts[node_id][1]
        tensors = self.algorithm.tensors
        found = unpack_train_reply(reply.content, tensors)
        check_reply(found, len(users), self.server.shared, tensors, self.algorithm.reduce)
        return users, found.updates

    def _drop(self, round: int, total: int) -> tuple[None, None]:
        """Keep the model as it was; stop when that happens too often."""
        self._dropped += 1
        self._tally.dropped = True
        if self._dropped >= MAX_DROPPED or (total == 0 and round == 1):
            raise FederationError(
                f"round {round}: {total} of {self._cohort} users' updates were accepted; {self._tally.first_line()}"
            )
        return None, None

    def _metrics(self, updates: dict[int, Update], users: int) -> MetricRecord:
        """Means over accepted users; bytes are those of a node that hosts one user."""
        shared, rows = self.server.shared, self.algorithm.tensors.item_rows
        sizes = {name: value.numel() * value.element_size() for name, value in shared.items()}
        touched = sum(update.touched for update in updates.values())
        per_row = sum(8 + sizes[name] / len(shared[name]) for name in rows)
        dense = sum(size for name, size in sizes.items() if name not in rows)
        return MetricRecord(
            {
                "loss": sum(update.loss for update in updates.values()) / users,
                "users": users,
                "bytes-up-per-user": touched / users * per_row + dense,
                "bytes-down-per-user": float(sum(sizes.values())),
            }
        )

    # --- evaluation ------------------------------------------------------------------------------

    def _evaluate(self, grid: Grid, round: int, line: dict[str, Any], last: bool) -> None:
        """Evaluate on validation (protocol paper has none: on test) and remember the best round."""
        began = time.perf_counter()
        split = "validation" if self._has_validation else "test"
        full = self.config.select_by.startswith("full")
        keep = self.best.round if self.best is not None else NO_SNAPSHOT
        snapshot = round if self._has_validation else NO_SNAPSHOT
        sums = self._federated_metrics(grid, round, split, full, self.server.shared, snapshot, keep)
        line[split] = {ranking: found.values() for ranking, found in sums.items()}
        ranking, _, name = self.config.select_by.partition(".")
        value = sums[ranking].value(name)
        if self.best is None or not self._has_validation or value > self.best.value:
            self.best = Best(
                round,
                value,
                {key: tensor.clone() for key, tensor in self.server.shared.items()},
                self._trained_items.copy(),
                self.roster.accepted > 0,
            )
        line["evaluation_seconds"] = time.perf_counter() - began

    def _federated_metrics(
        self,
        grid: Grid,
        round: int,
        split: str,
        full: bool,
        shared: State,
        snapshot: int = NO_SNAPSHOT,
        keep: int = NO_SNAPSHOT,
        restore: int = NO_SNAPSHOT,
    ) -> dict[str, MetricSums]:
        self._request = EvaluateRequest(
            self.experiment, round, split, full, np.empty(0, np.int64), {}, snapshot, keep, restore
        )
        self._tally = Tally()
        messages = self.configure_evaluate(round, pack_state(shared), ConfigRecord(), grid)
        replies = exchange(grid, messages, self._timeout, self._failed(self._tally))
        self.aggregate_evaluate(round, replies)
        self.history.count(self._tally)
        return self._sums

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to every node."""
        return [
            self._evaluate_message(member, arrays)
            for member in self.roster.members
            if member.last > member.first
        ]

    def _evaluate_message(self, member: Member, arrays: ArrayRecord) -> Message:
        users = np.arange(member.first, member.last)
        addressed = self.algorithm.download(self.server, torch.from_numpy(users)).addressed
        values = {
            **vars(self._request),
            "accepted": self.roster.accepted[users],
            "addressed": addressed,
        }
        content = pack_evaluate_request(EvaluateRequest(**values), arrays)
        return Message(
            content, member.node_id, MessageType.EVALUATE, group_id=str(self._request.round)
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Add the nodes' sums of metrics."""
        rankings = ("sampled", "full") if self._request.full else ("sampled",)
        parts: dict[int, dict[str, MetricSums]] = {}
        for reply in replies:
            node_id = reply.metadata.src_node_id
            try:
                flat = unpack_metrics(reply.content)
                parts[node_id] = {r: MetricSums.from_flat(flat, f"{r}.") for r in rankings}
            except ReplyError as error:
                self._failed(self._tally)(Failure(node_id, f"refused: {error}"))
        if not parts:
            raise FederationError(
                f"round {server_round}: no node could evaluate; {self._tally.first_line()}"
            )
        self._tally.replies = len(parts)
        self._sums = {r: MetricSums() for r in rankings}
        for member in self.roster.members:
            for ranking, found in parts.get(member.node_id, {}).items():
                self._sums[ranking] = self._sums[ranking].add(found)
        return MetricRecord({"users": self._sums["sampled"].users})

    # --- the end ---------------------------------------------------------------------------------

    def _finish(self, grid: Grid, result: Result) -> None:
        best = self.best
        assert best is not None, "the last round is always evaluated"
        restore = best.round if self._has_validation else NO_SNAPSHOT
        test = self._federated_metrics(grid, best.round, "test", True, best.shared, restore=restore)
        selected = self.config.select_by if self._has_validation else None
        self.outcome = Outcome(
            self.experiment,
            self.roster,
            best,
            selected,
            self.history.lines,
            test,
            self.history.failures,
        )
        result.arrays = pack_state(best.shared)
        for line in self.history.lines:
            result.train_metrics_clientapp[line["round"]] = MetricRecord({"loss": line["loss"]})

    def summary(self) -> None:
        """Nothing to log: the run's folder and the table at its end say it all."""

    def _failed(self, tally: "Tally") -> Callable[[Failure], None]:
        def count(failure: Failure) -> None:
            site = (
                self._sites.get(failure.node_id, str(failure.node_id))
                if hasattr(self, "_sites")
                else str(failure.node_id)
            )
            tally.add(site, failure)
            self.on_failure(site, failure)

        return count


@dataclass
class _InOrder:
    """Sums updates in the order of the nodes asked, however they arrive: rounding cannot differ."""

    nodes: list[int]
    waiting: dict[int, Update] = field(default_factory=dict)
    ready: list[Update] = field(default_factory=list)
    next: int = 0

    def put(self, node: int, update: Update) -> None:
        self.waiting[node] = update
        while self.next < len(self.nodes) and self.nodes[self.next] in self.waiting:
            self.ready.append(self.waiting.pop(self.nodes[self.next]))
            self.next += 1
        if len(self.ready) >= 32:
            self.ready = [Update.total(self.ready)]

    def total(self) -> Update:
        rest = [self.waiting[node] for node in self.nodes if node in self.waiting]
        return Update.total(self.ready + rest)
