"""The Flower Strategy: rounds over users, whatever carries the messages."""

import math
import time
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from fedrecgel.common.algorithms.base import ServerState
from fedrecgel.common.algorithms.registry import make_algorithm
from fedrecgel.common.config import Config
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.errors import ConfigError, FederationError, Stopped
from fedrecgel.common.greeting import Query
from fedrecgel.common.interactions import Ints
from fedrecgel.common.metrics import MetricSums
from fedrecgel.common.records import pack_state, unpack_state
from fedrecgel.common.requests import Experiment
from fedrecgel.common.sizes import message_sizes, refuse_memory
from fedrecgel.common.state import State
from fedrecgel.server.acceptance import NORM_ADVICE, NORM_REASON
from fedrecgel.server.checkpoint import last_experiment, restore_last, write_checkpoint
from fedrecgel.server.evaluation import EvaluationRound
from fedrecgel.server.exchange import LATE, WENT, Failure, exchange
from fedrecgel.server.federation import Federation, Outcome
from fedrecgel.server.gathering import Arrivals
from fedrecgel.server.history import Tally, line_of
from fedrecgel.server.presence import Presence
from fedrecgel.server.roster import Roster
from fedrecgel.server.training import TrainingRound

ATTEMPTS = 3
"""How often a round is tried, each time with other users, before the run stops."""


class FedRecStrategy(Strategy):
    """Trains a `Config`'s algorithm over the users that the nodes host.

    Parameters
    ----------
    config
        Settings; its class says which algorithm.
    min_nodes
        Nodes to wait for before round 1.
    wait
        Seconds to wait for them, and later for somebody when all sites are away.
    on_round
        Called after each round with its line of ``metrics.jsonl``, evaluated or not.
    on_failure
        Called for each failed or refused reply with the site's name.
    run_folder
        Where to keep checkpoints; none are written without it.
    resume
        Go on from the last checkpoint of ``run_folder``, if there is one.
    stop
        Asked after each round; True saves a checkpoint and raises `Stopped`.
    catalogue
        Sent to nodes that have a file of their own, which they prepare by it.
    say
        Told in a line of sites that go away, come back or join.

    Attributes
    ----------
    outcome
        What the run ended with; None before.

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
        run_folder: Path | None = None,
        resume: bool = False,
        stop: Callable[[], bool] | None = None,
        catalogue: Catalogue | None = None,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.config = config
        self.min_nodes = min_nodes
        self.wait = wait
        self.on_round = on_round or (lambda line: None)
        self.on_failure = on_failure or (lambda site, failure: None)
        self.run_folder = run_folder
        self.resume = resume
        self.stop = stop or (lambda: False)
        self.catalogue = catalogue
        self.say = say or (lambda text: None)
        self.outcome: Outcome | None = None
        self._sites: dict[int, str] = {}
        self._attempt = 0
        self._packed: ArrayRecord | None = None
        self._training: TrainingRound
        self._evaluation: EvaluationRound
        self._sums: dict[str, MetricSums]

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
        replaces the initial shared tensors.

        Raises
        ------
        FederationError
            When nodes are missing, or too few replies were good.
        Stopped
            When ``stop`` said so.
        """
        if train_config or evaluate_config:
            raise ConfigError("train_config and evaluate_config are not used; set them in Config")
        rounds = num_rounds or self.config.rounds
        self._timeout = timeout or self.config.round_timeout
        federation = self._begin(grid, initial_arrays)
        done = saved = self._restore()
        self._packed = None
        result = Result()
        for round in range(done + 1, rounds + 1):
            if self._patience_is_over():
                break
            try:
                line = self._train(grid, round)
            except FederationError:
                if done != saved:
                    self._save(done)
                raise
            evaluated = round == rounds or round % self.config.evaluate_every == 0
            if evaluated:
                self._validate(grid, round, line)
            stopping = self.stop()
            if evaluated or stopping:
                self._save(round)
                saved = round
            done = round
            result.train_metrics_clientapp[round] = MetricRecord({"loss": line["loss"]})
            if evaluate_fn is not None:
                found = evaluate_fn(
                    round, pack_state(federation.algorithm.scored(federation.server))
                )
                if found is not None:
                    result.evaluate_metrics_serverapp[round] = found
            self.on_round(line)
            if stopping:
                raise Stopped(round)
        self.outcome = self._test(grid, done)
        result.arrays = pack_state(self.outcome.best.shared)
        return result

    # --- Flower's interface: one set of messages, one fold of the replies -------------------------

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to each node that hosts users of the round's cohort."""
        self._tally = self._new_tally()
        self._training = TrainingRound(self.federation, server_round, self._tally, self._attempt)
        return list(self._training.messages(arrays))

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Fold good replies in and step the server's state; ``(None, None)`` drops the round."""
        metrics = self._training.fold(replies)
        if metrics is None:
            return None, None
        self._packed = pack_state(self.federation.server.shared)
        return self._packed, metrics

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """One message to every node."""
        return list(self._evaluation.messages(arrays))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Add the nodes' sums of metrics."""
        self._sums = self._evaluation.fold(replies)
        return MetricRecord({k: v for r, s in self._sums.items() for k, v in s.to_flat(r).items()})

    def summary(self) -> None:
        """Nothing to log: the run's folder and the table at its end say it all."""

    # --- the parts of a run -----------------------------------------------------------------------

    def _restore(self) -> int:
        """Go on from a checkpoint if asked to; the last round that is done."""
        if not self.resume or self.run_folder is None:
            return 0
        return restore_last(self.run_folder, self.federation, self.say)

    def _save(self, round: int) -> None:
        if self.run_folder is not None:
            write_checkpoint(self.run_folder, self.federation, round)

    def _patience_is_over(self) -> bool:
        """Whether validation has not become better for as long as ``patience`` allows."""
        federation, patience = self.federation, self.config.patience
        if not patience or not federation.roster.validation_users or federation.best is None:
            return False
        since = [line for line in federation.history.lines if line["round"] > federation.best.round]
        return len(since) >= patience

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord | None) -> Federation:
        query = Query(self._run_id(), self.catalogue)
        arrivals = Arrivals(grid, query)
        hellos = arrivals.first(self.min_nodes, self.wait, self._new_tally())
        roster = Roster(hellos, self.catalogue)
        self._sites = {node: hello.site for node, hello in hellos.items()}
        most = max(member.last - member.first for member in roster.members)
        users = math.ceil(self.config.fraction * most)
        message_sizes(self.config, roster.num_items).refuse_large(users)
        refuse_memory(self.config, roster.num_users, roster.num_items)
        algorithm = make_algorithm(self.config, roster.num_items)
        server = algorithm.init_server()
        if initial_arrays is not None:
            _load(server.shared, unpack_state(initial_arrays))
        experiment = Experiment(
            query.run,
            self.config.algorithm,
            self.config.to_flat(),
            roster.num_items,
            roster.catalogue,
        )
        trained_items = np.zeros(roster.num_items, dtype=bool)
        self.federation = Federation(
            self.config, experiment, roster, algorithm, server, trained_items
        )
        self._presence = Presence(
            grid,
            self.federation,
            arrivals,
            new_tally=self._new_tally,
            say=self.say,
            wait=self.wait,
        )
        return self.federation

    def _run_id(self) -> str:
        """That of the run to go on with, or a new one."""
        then = last_experiment(self.run_folder) if self.resume and self.run_folder else None
        return then.id if then else uuid.uuid4().hex

    def _train(self, grid: Grid, round: int) -> dict[str, Any]:
        """Train until enough replies are good, each attempt with other users.

        Raises
        ------
        FederationError
            After `ATTEMPTS`; the model is then as it was before the round.
        """
        began = time.perf_counter()
        arrays = self._packed or pack_state(self.federation.server.shared)
        for attempt in range(ATTEMPTS):
            self._presence.look(f"round {round}")
            self._attempt = attempt
            messages = self.configure_train(round, arrays, ConfigRecord(), grid)
            replies = exchange(grid, messages, self._timeout, self._tally.add)
            metrics = self.aggregate_train(round, replies)[1]
            self.federation.history.count(self._tally)
            if metrics is not None:
                line = line_of(round, metrics, self._tally, dropped=attempt)
                line["away"] = sorted(self.federation.roster.away)
                line["seconds"] = line["round_seconds"] = time.perf_counter() - began
                self.federation.history.passed(line)
                return line
        raise FederationError(
            f"round {round}: updates of {self._tally.users} of {self._training.users} users were "
            f"accepted in the last of {ATTEMPTS} attempts; {self._tally.first_line()}"
            + (NORM_ADVICE if NORM_REASON in self._tally.first_line() else "")
        )

    def _validate(self, grid: Grid, round: int, line: dict[str, Any]) -> None:
        """Evaluate on validation, remember the best round.

        Protocol paper holds no validation items out: the curve is then that of the test items,
        and the last round is taken whatever it shows.
        """
        began, federation = time.perf_counter(), self.federation
        roster, (ranking, _, name) = federation.roster, self.config.select_by.partition(".")
        split = "validation" if roster.validation_users else "test"
        sums = self._evaluate(
            grid,
            round,
            federation.server,
            lambda: roster.accepted,
            split=split,
            full=ranking == "full",
        )
        line[split] = {r: found.values() for r, found in sums.items()}
        eligible = roster.validation_users if split == "validation" else roster.test_users
        line["evaluated"] = {"users": sums[ranking].users, "eligible": eligible}
        value, best = sums[ranking].value(name), federation.best
        members = self._evaluation.by_member(ranking, name)
        if best is None or split == "test" or best.beaten_by(value, members):
            federation.remember(round, value, members)
        line["evaluation_seconds"] = time.perf_counter() - began
        federation.history.append(line)

    def _test(self, grid: Grid, rounds: int) -> Outcome:
        federation, best = self.federation, self.federation.best
        assert best is not None, "the last round is always evaluated"
        self._presence.wait_for_all("final test")
        test = self._evaluate(
            grid, best.round, best.server, lambda: best.accepted, split="test", full=True
        )
        selected = self.config.select_by if federation.roster.validation_users else None
        return Outcome(
            federation.experiment,
            federation.roster,
            best,
            rounds,
            selected,
            federation.history,
            test,
        )

    def _evaluate(
        self,
        grid: Grid,
        round: int,
        server: ServerState,
        accepted: Callable[[], Ints],
        **request: Any,  # noqa: ANN401 - those of EvaluationRound
    ) -> dict[str, MetricSums]:
        """Evaluate at all sites that are there, again if all of them went away or were too slow.

        ``accepted`` is asked when it is known who is there: a site may have joined.
        """
        for attempt in range(ATTEMPTS):
            self._presence.look(f"evaluation of round {round}")
            tally = self._new_tally()
            self._evaluation = EvaluationRound(
                self.federation, round, tally, server=server, accepted=accepted(), **request
            )
            arrays = pack_state(self.federation.algorithm.scored(server))
            messages = self.configure_evaluate(round, arrays, ConfigRecord(), grid)
            replies = exchange(grid, messages, self._timeout, tally.add)
            try:
                self.aggregate_evaluate(round, replies)
            except FederationError:
                if not tally.reasons.keys() & {WENT, LATE} or attempt == ATTEMPTS - 1:
                    raise
            else:
                break
            finally:
                self.federation.history.count(tally)
        return self._sums

    def _new_tally(self) -> Tally:
        return Tally(self._site_of, self.on_failure)

    def _site_of(self, node: int) -> str:
        if node not in self._sites and hasattr(self, "federation"):
            self._sites |= {m.node_id: m.site for m in self.federation.roster.members}
        return self._sites.get(node, f"node {node}")


def _load(shared: State, given: State) -> None:
    """Replace the initial shared tensors."""
    for name, value in shared.items():
        if name not in given or given[name].shape != value.shape:
            raise ConfigError(
                f"initial_arrays do not fit: '{name}' must be of shape {tuple(value.shape)}"
            )
        value.copy_(given[name])
