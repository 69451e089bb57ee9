"""Rounds over nodes that fail, lie, repeat themselves or say nothing."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict

from fedrecgel.client.site import Site
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.errors import ConfigError, FederationError
from fedrecgel.common.greeting import Hello
from fedrecgel.common.records import pack_state
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.grid import InProcessGrid
from fedrecgel.simulation.progress import Progress

pytestmark = pytest.mark.flower

Make = Callable[..., Any]
Hook = Callable[[Message, Message], Message]
SETTINGS: dict[str, Any] = {
    "scorer": "dot",
    "embedding_dim": 4,
    "init_std": 0.1,
    "server_lr": 0.05,
    "rounds": 3,
    "fraction": 1.0,
    "evaluate_every": 1,
    "nodes": 4,
}
RAISED = "client app raised an exception"


class FaultyGrid(InProcessGrid):
    """Lets a test replace replies, and be silent for some messages."""

    hook: Hook = staticmethod(lambda message, reply: reply)
    silent: Callable[[Message], bool] = staticmethod(lambda message: False)
    times = 1

    def _answer(self, message: Message) -> Message:
        return self.hook(message, super()._answer(message))

    def pull_messages(self, message_ids: Any) -> list[Message]:
        heard = [i for i in message_ids if i in self._pending and not self.silent(self._pending[i])]
        return list(super().pull_messages(heard)) * self.times


def site_of(message: Message) -> int:
    return message.metadata.dst_node_id - 2


def round_of(message: Message) -> int:
    return int(message.content["request"]["round"])


def is_train(message: Message, *sites: int) -> bool:
    return message.metadata.message_type == "train" and site_of(message) in (sites or range(99))


def failure(message: Message) -> Message:
    text = "Traceback (most recent call last):\n  File x\nValueError: disk full"
    return Message(Error(2, text), reply_to=message)


def assert_one_line(error: BaseException) -> None:
    assert "\n" not in str(error)
    assert len(str(error)) < 300


def test_a_failing_node_is_counted_and_named_and_the_run_goes_on(
    federation: Make, small_data: Dataset
) -> None:
    run = federation(small_data, **SETTINGS)
    grid = run.grid(FaultyGrid)
    grid.hook = lambda message, reply: failure(message) if is_train(message, 1) else reply
    outcome = run.run(grid).outcome
    assert run.failures == [("site-1", RAISED)] * 3
    assert outcome.history.failures == {RAISED: 3}
    for line in run.lines:
        assert (line["replies"], line["failures"], line["users"]) == (3, 1, 18)
        assert line["reasons"] == {RAISED: 1}
        assert not line["dropped"]
    accepted = outcome.best.accepted
    assert (accepted[6:12] == 0).all()
    assert (np.delete(accepted, range(6, 12)) == outcome.best.round).all()
    assert outcome.test["full"].users == 24


def test_when_all_nodes_fail_the_first_failure_is_told_in_round_1(
    federation: Make, small_data: Dataset
) -> None:
    run = federation(small_data, **SETTINGS)
    grid = run.grid(FaultyGrid)
    grid.hook = lambda message, reply: failure(message) if is_train(message) else reply
    with pytest.raises(FederationError) as caught:
        run.run(grid)
    assert_one_line(caught.value)
    assert str(caught.value).startswith("round 1: updates of 0 of 24 users were accepted")
    assert str(caught.value).endswith(f"first: site-0: {RAISED}: ValueError: disk full")
    assert run.lines == []


def test_a_defect_in_the_client_is_told_from_its_last_line(
    federation: Make, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = federation(small_data, device="cuda:7", **SETTINGS)
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(FederationError, match="device 'cuda:7' asked for, but torch sees no GPU"):
        run.run()


# --- replies that cannot be believed --------------------------------------------------------------


def change_array(key: str, change: Callable[[np.ndarray], np.ndarray]) -> Hook:
    def hook(message: Message, reply: Message) -> Message:
        if is_train(message, 2):
            arrays = dict(reply.content["update"])
            arrays[key] = Array(np.ascontiguousarray(change(arrays[key].numpy())))
            reply.content["update"] = ArrayRecord(arrays)
        return reply

    return hook


def change_metrics(**changes: Any) -> Hook:
    def hook(message: Message, reply: Message) -> Message:
        if is_train(message, 2):
            values = {**dict(reply.content["metrics"]), **changes}
            reply.content["metrics"] = MetricRecord(values)
        return reply

    return hook


def rename(old: str, new: str) -> Hook:
    def hook(message: Message, reply: Message) -> Message:
        if is_train(message, 2):
            arrays = dict(reply.content["update"])
            arrays[new] = arrays.pop(old)
            reply.content["update"] = ArrayRecord(arrays)
        return reply

    return hook


def drop_record(message: Message, reply: Message) -> Message:
    if is_train(message, 2):
        reply = Message(RecordDict({"metrics": reply.content["metrics"]}), reply_to=message)
    return reply


ROWS, INDEX = "0/items/rows", "0/items/index"


@pytest.mark.parametrize(
    ("hook", "reason"),
    [
        (change_array(ROWS, lambda a: a * np.float32("nan")), "not finite"),
        (change_array(ROWS, lambda a: np.full_like(a, np.inf)), "not finite"),
        (change_metrics(loss=[float("nan")]), "not finite"),
        (change_array(ROWS, lambda a: a[:, :-1]), "wrong shape or type"),
        (change_array(ROWS, lambda a: a[:-1]), "wrong shape or type"),
        (change_array(ROWS, lambda a: a.astype(np.float64)), "wrong shape or type"),
        (change_array(INDEX, lambda a: a[::-1]), "out of order or range"),
        (change_array(INDEX, lambda a: a + 100), "out of order or range"),
        (change_array(ROWS, lambda a: a * np.float32(1e6)), "norm far beyond the median"),
        (change_metrics(users=[7]), "wrong number of users"),
        (change_metrics(users=[10**9]), "wrong number of users"),
        (change_metrics(users=[3, 3], loss=[1.0, 1.0], touched=[3, 3]), "wrong number of users"),
        (change_metrics(users=6), "missing or of unequal length"),
        (rename(ROWS, "0/user"), "may not travel"),
        (rename(ROWS, "1/items/rows"), "may not travel"),
        (drop_record, "no record 'update'"),
    ],
)
def test_a_reply_that_cannot_be_believed_is_refused_and_named(
    federation: Make, small_data: Dataset, hook: Hook, reason: str
) -> None:
    run = federation(small_data, **{**SETTINGS, "rounds": 2})
    grid = run.grid(FaultyGrid)
    grid.hook = hook
    outcome = run.run(grid).outcome
    assert [site for site, _ in run.failures] == ["site-2"] * 2
    assert all(text.startswith("refused: ") and reason in text for _, text in run.failures)
    assert [line["users"] for line in run.lines] == [18, 18]
    assert all(torch.isfinite(value).all() for value in outcome.best.shared.values())
    # Nothing of it was folded in: the same as if the node had failed.
    other = federation(small_data, **{**SETTINGS, "rounds": 2})
    grid = other.grid(FaultyGrid)
    grid.hook = lambda message, reply: failure(message) if is_train(message, 2) else reply
    expected = other.run(grid).outcome
    assert torch.equal(outcome.best.shared["items"], expected.best.shared["items"])


def test_a_reply_for_another_round_is_refused(federation: Make, small_data: Dataset) -> None:
    run = federation(small_data, **SETTINGS)
    grid = run.grid(FaultyGrid)
    old: dict[int, RecordDict] = {}

    def hook(message: Message, reply: Message) -> Message:
        if is_train(message, 2):
            old.setdefault(2, reply.content)
            return Message(old[2], reply_to=message)
        return reply

    grid.hook = hook
    run.run(grid)
    assert run.failures == [("site-2", "refused: for another round")] * 2


def test_a_reply_sent_twice_counts_once(federation: Make, small_data: Dataset) -> None:
    plain, twice = (federation(small_data, **SETTINGS) for _ in range(2))
    grid = twice.grid(FaultyGrid)
    grid.times = 2
    expected, found = plain.run().outcome, twice.run(grid).outcome
    assert torch.equal(found.best.shared["items"], expected.best.shared["items"])
    assert {reason for _, reason in twice.failures} == {"late or sent twice"}
    assert [line["replies"] for line in twice.lines] == [4, 4, 4]


def test_a_node_that_says_nothing_is_left_out_after_the_timeout(
    federation: Make, small_data: Dataset
) -> None:
    run = federation(small_data, **{**SETTINGS, "round_timeout": 0.05})
    grid = run.grid(FaultyGrid)
    grid.silent = lambda message: is_train(message, 3)
    run.run(grid)
    assert run.failures == [("site-3", "no reply in time")] * 3
    assert [line["users"] for line in run.lines] == [18] * 3


def test_replies_that_come_late_are_counted_and_it_is_said_what_to_set(
    federation: Make, small_data: Dataset
) -> None:
    """U014: sixteen nodes share the cores, and five of them are too slow in the second round."""
    settings = {**SETTINGS, "nodes": 16, "round_timeout": 0.3, "min_replies": 0.5}
    run = federation(small_data, **settings)
    grid, slow = run.grid(FaultyGrid), range(3, 8)
    grid.silent = lambda message: is_train(message, *slow) and round_of(message) == 2
    outcome, said = run.run(grid).outcome, io.StringIO()
    assert [line["failures"] for line in run.lines] == [0, 5, 0]
    assert outcome.history.failures == {"no reply in time": 5}
    assert outcome.history.failures_by_site.keys() == {f"site-{part:02d}" for part in slow}
    progress = Progress(3, log="text", stream=said)
    for site, told in run.told:
        progress.on_failure(site, told)
    assert said.getvalue().splitlines() == [
        f"site-{part:02d}: no reply in time: nothing within 0.3 s; a node that shares its cores "
        "with others is slow: raise round-timeout, or host fewer nodes on a machine"
        for part in slow
    ]


# --- rounds with too few good replies -------------------------------------------------------------


def test_an_attempt_with_too_few_replies_is_dropped_and_leaves_no_trace(
    federation: Make, small_data: Dataset
) -> None:
    """Model, private state and metrics are those of a run in which it never happened."""
    plain, faulty = (federation(small_data, **SETTINGS) for _ in range(2))
    expected = plain.run().outcome
    grid = faulty.grid(FaultyGrid)
    asked: list[int] = []

    def hook(message: Message, reply: Message) -> Message:
        if is_train(message, 0, 1, 2) and round_of(message) == 2:
            asked.append(site_of(message))
            if asked.count(site_of(message)) == 1:
                return failure(message)  # after it has trained and kept its state
        return reply

    grid.hook = hook
    found = faulty.run(grid).outcome
    assert [line["dropped"] for line in faulty.lines] == [0, 1, 0]
    assert [line["dropped"] for line in plain.lines] == [0, 0, 0]
    assert found.history.failures == {RAISED: 3}
    assert torch.equal(found.best.shared["items"], expected.best.shared["items"])
    for name, value in plain.private().items():
        assert torch.equal(faulty.private()[name], value)
    assert [line["loss"] for line in faulty.lines] == [line["loss"] for line in plain.lines]


def test_a_round_that_fails_for_good_leaves_the_model_of_the_round_before(
    federation: Make, small_data: Dataset
) -> None:
    one = federation(small_data, **{**SETTINGS, "rounds": 1})
    expected = one.run().outcome.best.shared["items"]
    run = federation(small_data, **SETTINGS)
    grid = run.grid(FaultyGrid)
    grid.hook = lambda message, reply: (
        failure(message) if is_train(message, 0, 1, 2) and round_of(message) == 2 else reply
    )
    strategy = FedRecStrategy(run.config, min_nodes=4, on_round=run.lines.append)
    with pytest.raises(FederationError, match="round 2: updates of 6 of 24 users") as caught:
        strategy.start(grid)
    assert_one_line(caught.value)
    assert [line["round"] for line in run.lines] == [1]
    assert torch.equal(strategy.federation.server.shared["items"], expected)


@pytest.mark.parametrize(("share", "runs"), [(0.75, True), (0.76, False)])
def test_how_many_users_must_be_accepted_is_a_setting(
    federation: Make, small_data: Dataset, share: float, runs: bool
) -> None:
    run = federation(small_data, min_replies=share, **{**SETTINGS, "rounds": 1})
    grid = run.grid(FaultyGrid)
    grid.hook = lambda message, reply: failure(message) if is_train(message, 1) else reply
    if runs:
        run.run(grid)
    else:
        with pytest.raises(FederationError, match="updates of 18 of 24 users"):
            run.run(grid)


# --- evaluation -----------------------------------------------------------------------------------


def test_metrics_tell_over_how_many_users_they_are(federation: Make, small_data: Dataset) -> None:
    run = federation(small_data, **SETTINGS)
    grid = run.grid(FaultyGrid)
    grid.hook = lambda message, reply: (
        failure(message)
        if message.metadata.message_type == "evaluate" and site_of(message) == 0
        else reply
    )
    outcome = run.run(grid).outcome
    assert outcome.test["sampled"].users == outcome.test["full"].users == 18
    assert outcome.history.failures == {RAISED: 4}


def test_when_no_node_can_evaluate_the_run_says_so(federation: Make, small_data: Dataset) -> None:
    run = federation(small_data, **SETTINGS)
    grid = run.grid(FaultyGrid)
    grid.hook = lambda message, reply: (
        failure(message) if message.metadata.message_type == "evaluate" else reply
    )
    with pytest.raises(
        FederationError, match="round 1: no node could evaluate; first: site-0"
    ) as e:
        run.run(grid)
    assert_one_line(e.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampled.users": 10.0**9},
        {"sampled.users": 7.0},
        {"sampled.users": -1.0},
        {"sampled.hr@10.sum": 7.0},
        {"sampled.hr@10.sum": float("nan")},
        {"sampled.ndcg@5.squares": -1.0},
    ],
)
def test_impossible_sums_of_metrics_are_refused(
    federation: Make, small_data: Dataset, changes: dict[str, float]
) -> None:
    run = federation(small_data, **{**SETTINGS, "rounds": 1})
    grid = run.grid(FaultyGrid)

    def hook(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "evaluate" and site_of(message) == 1:
            reply.content["metrics"] = MetricRecord({**dict(reply.content["metrics"]), **changes})
        return reply

    grid.hook = hook
    outcome = run.run(grid).outcome
    assert outcome.test["sampled"].users == 18
    assert [site for site, _ in run.failures] == ["site-1"] * 2
    assert all(reason.startswith("refused: ") for _, reason in run.failures)


def test_a_first_evaluation_over_nobody_does_not_win(
    federation: Make, on_disk: Callable[[Dataset], Dataset]
) -> None:
    """Only site-0 has validation items and cannot evaluate at first: nan is no metric to beat."""
    train = [[0, 1], [2, 3], [1, 2], [0, 3]]
    data = on_disk(make_dataset(train, [2, 4, -1, -1], [3, 5, 4, 5], 8))
    run = federation(data, **{**SETTINGS, "nodes": 2})
    grid = run.grid(FaultyGrid)
    grid.hook = lambda message, reply: (
        failure(message)
        if message.metadata.message_type == "evaluate"
        and site_of(message) == 0
        and round_of(message) == 1
        else reply
    )
    outcome = run.run(grid).outcome
    assert outcome.best.round in (2, 3)
    assert outcome.best.value >= 0


def test_the_best_round_is_restored_with_everybodys_own_state(
    federation: Make, small_data: Dataset
) -> None:
    """U067, U070: shared and private tensors of the test are those of the chosen round."""
    settings = {**SETTINGS, "rounds": 8, "fraction": 0.4, "server_lr": 0.3, "seed": 2}
    run = federation(small_data, **settings)
    shared, private, values = {}, {}, {}
    everyone = np.arange(24)

    def on_round(line: dict[str, Any]) -> None:
        round, accepted = line["round"], strategy.federation.roster.accepted
        trained = everyone[accepted > 0]
        store = run.store()
        private[round] = (trained, store.load(trained, accepted[trained]))
        shared[round] = strategy.federation.server.shared["items"].clone()
        values[round] = line["validation"]["sampled"]["ndcg@10"]["value"]

    strategy = FedRecStrategy(run.config, min_nodes=4, on_round=on_round)
    strategy.start(run.grid())
    assert strategy.outcome is not None
    best = strategy.outcome.best
    assert values[best.round] == best.value == max(values.values())
    assert best.round < 8  # the case that is worth a test
    assert torch.equal(best.shared["items"], shared[best.round])
    trained, expected = private[best.round]
    found, who = run.store().load_chosen(everyone)
    assert everyone[who].tolist() == trained.tolist()
    for name, value in expected.items():
        assert torch.equal(found[name], value)
    assert 0 < len(trained) < 24


# --- the start ------------------------------------------------------------------------------------


def change_hello(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    hello = Site.hello
    monkeypatch.setattr(Site, "hello", lambda site: Hello(**{**vars(hello(site)), **changes}))


def test_two_sites_of_one_name_are_refused(
    federation: Make, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    change_hello(monkeypatch, site="paris")
    with pytest.raises(FederationError, match="two nodes call themselves 'paris'") as caught:
        federation(small_data, **SETTINGS).run()
    assert_one_line(caught.value)


def test_sites_with_different_catalogues_are_refused(
    federation: Make, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    hello = Site.hello
    monkeypatch.setattr(
        Site,
        "hello",
        lambda site: Hello(**{**vars(hello(site)), "catalogue": site.name}),
    )
    with pytest.raises(FederationError, match="different catalogues") as caught:
        federation(small_data, **SETTINGS).run()
    assert_one_line(caught.value)


def test_a_node_that_is_missing_is_waited_for_and_then_told(
    federation: Make, small_data: Dataset
) -> None:
    run = federation(small_data, **SETTINGS)
    strategy = FedRecStrategy(run.config, min_nodes=5, wait=0.05)
    with pytest.raises(FederationError, match=r"4 of 5 nodes are there after 0\.05 s") as caught:
        strategy.start(run.grid())
    assert_one_line(caught.value)


def test_a_node_that_cannot_say_hello_is_told(federation: Make, small_data: Dataset) -> None:
    run = federation(small_data, **SETTINGS)
    grid = run.grid(FaultyGrid)
    grid.hook = lambda message, reply: (
        failure(message)
        if message.metadata.message_type == "query" and site_of(message) == 1
        else reply
    )
    with pytest.raises(
        FederationError, match=r"3 of 4 nodes answered; .*ValueError: disk full"
    ) as e:
        run.run(grid)
    assert_one_line(e.value)


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"users": 10**13}, "more users than a node may host"),
        ({"validation_users": 10**6}, "more users than a node may host"),
        ({"users": "many"}, "other fields than expected"),
    ],
)
def test_a_node_with_an_absurd_hello_is_left_out(
    federation: Make, small_data: Dataset, values: dict[str, Any], reason: str
) -> None:
    run = federation(small_data, **{**SETTINGS, "rounds": 1})
    grid = run.grid(FaultyGrid)

    def hook(message: Message, reply: Message) -> Message:
        if message.metadata.message_type == "query" and site_of(message) == 1:
            reply.content["hello"].update(values)
        return reply

    grid.hook = hook
    with pytest.raises(FederationError, match=f"3 of 4 nodes answered; .*{reason}") as caught:
        run.run(grid)
    assert_one_line(caught.value)
    strategy = FedRecStrategy(run.config, min_nodes=3, wait=1.0)
    strategy.start(grid)
    assert strategy.outcome is not None
    assert len(strategy.outcome.roster.members) == 3


def test_replies_that_nobody_asked_for_do_not_hold_a_round_up(
    federation: Make, small_data: Dataset
) -> None:
    run = federation(small_data, **{**SETTINGS, "rounds": 1, "round_timeout": 0.2})
    old: list[Message] = []

    class Noisy(FaultyGrid):
        def pull_messages(self, message_ids: Any) -> list[Message]:
            found = super().pull_messages(message_ids)
            old.extend(found)
            return found or old[:1]

    grid = run.grid(Noisy)
    grid.silent = lambda message: is_train(message, 3)
    run.run(grid)
    assert ("site-3", "no reply in time") in run.failures


def test_failures_are_counted_by_reason_and_by_site(federation: Make, small_data: Dataset) -> None:
    run = federation(small_data, **SETTINGS)
    grid = run.grid(FaultyGrid)
    grid.hook = lambda message, reply: failure(message) if is_train(message, 1, 2) else reply
    history = run.run(grid).outcome.history
    assert history.failures == {RAISED: 6}
    assert history.failures_by_site == {"site-1": {RAISED: 3}, "site-2": {RAISED: 3}}


def test_initial_arrays_replace_the_initial_model(federation: Make, small_data: Dataset) -> None:
    first = federation(small_data, **{**SETTINGS, "rounds": 1})
    trained = first.run().outcome.best.shared
    run = federation(small_data, **{**SETTINGS, "rounds": 1})
    strategy = FedRecStrategy(run.config, min_nodes=4, on_round=run.lines.append)
    result = strategy.start(run.grid(), initial_arrays=pack_state(trained))
    assert run.lines[0]["loss"] != first.lines[0]["loss"]
    assert set(result.arrays) == {"items"}
    with pytest.raises(ConfigError, match=r"'items' must be of shape \(30, 5\)"):
        strategy.start(run.grid(), initial_arrays=pack_state({"items": torch.zeros(2, 5)}))


def test_flowers_own_arguments_are_taken(federation: Make, small_data: Dataset) -> None:
    run = federation(small_data, **SETTINGS)
    strategy = FedRecStrategy(run.config, min_nodes=4, on_round=run.lines.append)
    result = strategy.start(
        run.grid(),
        num_rounds=2,
        timeout=5.0,
        evaluate_fn=lambda round, arrays: MetricRecord({"round": round, "arrays": len(arrays)}),
    )
    assert len(run.lines) == 2
    assert sorted(result.train_metrics_clientapp) == [1, 2]
    assert dict(result.evaluate_metrics_serverapp[2]) == {"round": 2, "arrays": 1}
