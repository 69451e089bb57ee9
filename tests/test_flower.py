"""The parts in somebody else's Flower app: our Strategy, our ClientApp, Flower's own strategies."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
)

from fedrecgel import FedRecStrategy, initial_arrays, make_config, settings_record
from fedrecgel.client.app import app, on_evaluate, on_query, on_train
from fedrecgel.common.algorithms.registry import ALGORITHMS, make_algorithm
from fedrecgel.common.config import Config
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.records import pack_state, unpack_state
from fedrecgel.simulation.grid import InProcessGrid

pytestmark = pytest.mark.flower
NODES = 3


@pytest.fixture
def checkerboard(on_disk: Callable[[Dataset], Dataset]) -> Dataset:
    """20 users who like the items of their own parity, of 20."""
    train, validation, test = [], [], []
    for user in range(20):
        own = [item for item in range(20) if item % 2 == user % 2]
        own = own[user // 2 :] + own[: user // 2]
        train.append(own[:8])
        validation.append(own[8])
        test.append(own[9])
    return on_disk(make_dataset(train, validation, test, 20, num_candidates=10))


@pytest.fixture
def config() -> Config:
    settings = {"scorer": "dot", "embedding_dim": 8, "init_std": 0.1, "fraction": 1.0}
    return make_config("fedrecgel", {**settings, "rounds": 5, "evaluate_every": 5})


@pytest.fixture
def grid_of(checkerboard: Dataset, tmp_path: Any) -> Callable[..., InProcessGrid]:
    def make(client: ClientApp = app, nodes: int = NODES) -> InProcessGrid:
        configs = [{"partition-id": part, "num-partitions": nodes} for part in range(nodes)]
        where = {"data": str(checkerboard.path), "state": str(tmp_path / "state")}
        return InProcessGrid(client, configs, where)

    return make


def rounds_of(grid: InProcessGrid, strategy: Any, config: Config, rounds: int) -> Any:
    settings = settings_record(config)
    arrays = initial_arrays(config, num_items=20)
    return strategy.start(
        grid, arrays, num_rounds=rounds, train_config=settings, evaluate_config=settings
    )


def test_our_strategy_in_somebody_elses_server_app(
    config: Config, grid_of: Callable[..., InProcessGrid]
) -> None:
    server = ServerApp()
    results = []

    @server.main()
    def main(grid: Any, context: Context) -> None:
        results.append(FedRecStrategy(config, min_nodes=NODES).start(grid))

    server(grid_of(), Context(1, 0, {}, pack_state_free(), {}))
    assert set(unpack_state(results[0].arrays)) == {"items"}


def pack_state_free() -> Any:
    from flwr.app import RecordDict

    return RecordDict()


@pytest.mark.parametrize("strategy", [FedAvg(), FedAdam(eta=0.1, tau=1e-8)], ids=["avg", "adam"])
def test_stock_strategies_learn(
    strategy: Any, config: Config, grid_of: Callable[..., InProcessGrid]
) -> None:
    result = rounds_of(grid_of(), strategy, config, 30)
    losses = [float(m["train-loss"]) for m in result.train_metrics_clientapp.values()]
    hits = [float(m["sampled.hr@5"]) for m in result.evaluate_metrics_clientapp.values()]
    assert losses[-1] < 0.5 * losses[0]
    # Five of eleven at random; the ten rivals are of the other parity or unseen ones of the same.
    assert hits[-1] > 0.8
    assert result.train_metrics_clientapp[1]["train-loss"] > 0


def test_fedavg_takes_the_step_of_plain_gradient_descent(
    config: Config, grid_of: Callable[..., InProcessGrid]
) -> None:
    exact = config.replace(dtype="float64")
    ours = exact.replace(rounds=1, evaluate_every=1, server_optimizer="sgd", server_lr=1.0)
    stock = rounds_of(grid_of(), FedAvg(fraction_evaluate=0.0), exact, 1)
    expected = FedRecStrategy(ours, min_nodes=NODES).start(grid_of())
    for name, value in unpack_state(expected.arrays).items():
        np.testing.assert_allclose(unpack_state(stock.arrays)[name], value, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("fedmf", {"item_lr": 0.1}),
        ("fedncf", {"sends": "change", "row_average": False, "embedding_dim": 4}),
    ],
)
def test_fedavg_takes_the_mean_change_where_an_algorithm_sends_one(
    grid_of: Callable[..., InProcessGrid], name: str, settings: dict[str, Any]
) -> None:
    common = {"dtype": "float64", "fraction": 1.0, "rounds": 1}
    config = make_config(name, {**common, **settings})
    stock = rounds_of(grid_of(), FedAvg(fraction_evaluate=0.0), config, 1)
    expected = FedRecStrategy(config, min_nodes=NODES).start(grid_of())
    for name, value in unpack_state(expected.arrays).items():
        np.testing.assert_allclose(unpack_state(stock.arrays)[name], value, atol=1e-12)


@pytest.mark.parametrize("name", [n for n, a in ALGORITHMS.items() if a.reduce == "per-user"])
def test_stock_strategies_are_refused_where_each_users_update_is_needed(
    grid_of: Callable[..., InProcessGrid], name: str
) -> None:
    """U039."""
    with pytest.raises(ConfigError, match=f"{name} needs each user's own update"):
        rounds_of(grid_of(), FedAvg(fraction_evaluate=0.0), make_config(name), 1)


@pytest.mark.parametrize(
    ("name", "more"), [("fedmf", {"row_average": True}), ("fedncf", {"sends": "change"})]
)
def test_stock_strategies_are_refused_where_rows_are_averaged_over_those_who_touched_them(
    grid_of: Callable[..., InProcessGrid], name: str, more: dict[str, Any]
) -> None:
    config = make_config(name, more)
    with pytest.raises(ConfigError, match=f"{name} with row-average .* set row-average=false"):
        rounds_of(grid_of(), FedAvg(fraction_evaluate=0.0), config, 1)


def test_stock_replies_have_one_record_of_each_kind_and_the_keys_they_were_sent(
    config: Config, grid_of: Callable[..., InProcessGrid]
) -> None:
    seen: list[tuple[Message, Message]] = []

    def watch(message: Message, context: Context, call_next: Any) -> Message:
        reply = call_next(message, context)
        seen.append((message, reply))
        return reply  # type: ignore[no-any-return]

    client = ClientApp()
    client.train(mods=[watch])(on_train)
    rounds_of(grid_of(client), FedAvg(fraction_evaluate=0.0), config, 1)
    for message, reply in seen:
        assert len(reply.content.array_records) == len(reply.content.metric_records) == 1
        assert list(reply.content["arrays"]) == list(message.content["arrays"])
    assert sum(reply.content["metrics"]["num-examples"] for _, reply in seen) == 20


def with_mods(*mods: Any) -> ClientApp:
    """Our ClientApp with mods on training."""
    client = ClientApp()
    client.query()(on_query)
    client.train(mods=list(mods))(on_train)
    client.evaluate()(on_evaluate)
    return client


def test_local_differential_privacy_on_the_client(
    config: Config, grid_of: Callable[..., InProcessGrid]
) -> None:
    noisy = LocalDpMod(clipping_norm=1e-6, sensitivity=1e-6, epsilon=10.0, delta=1e-3)
    result = rounds_of(grid_of(with_mods(noisy)), FedAvg(), config, 2)
    before, after = unpack_state(initial_arrays(config, 20)), unpack_state(result.arrays)
    moved = [float((after[name] - value).abs().max()) for name, value in before.items()]
    assert 0 < max(moved) < 1e-4
    assert 2 in result.evaluate_metrics_clientapp


@pytest.mark.parametrize(
    ("wrapper", "mods"),
    [
        (
            lambda s: DifferentialPrivacyClientSideFixedClipping(s, 0.01, 1e-3, NODES),
            [fixedclipping_mod],
        ),
        (
            lambda s: DifferentialPrivacyClientSideAdaptiveClipping(s, 0.01, NODES, 1e-2),
            [adaptiveclipping_mod],
        ),
        (lambda s: DifferentialPrivacyServerSideFixedClipping(s, 0.01, 1e-3, NODES), []),
    ],
    ids=["client-fixed", "client-adaptive", "server-fixed"],
)
def test_differential_privacy_wrappers_work_unchanged(
    wrapper: Any, mods: list[Any], config: Config, grid_of: Callable[..., InProcessGrid]
) -> None:
    result = rounds_of(grid_of(with_mods(*mods)), wrapper(FedAvg()), config, 3)
    assert len(result.train_metrics_clientapp) == 3
    assert len(result.evaluate_metrics_clientapp) == 3
    before, after = unpack_state(initial_arrays(config, 20)), unpack_state(result.arrays)
    assert 0 < float((after["items"] - before["items"]).norm()) < 1.0


def test_weights_that_do_not_fit_are_one_line(
    config: Config, grid_of: Callable[..., InProcessGrid]
) -> None:
    replies: list[Message] = []

    class Kept(InProcessGrid):
        def _answer(self, message: Message) -> Message:
            replies.append(super()._answer(message))
            return replies[-1]

    grid = grid_of()
    grid.__class__ = Kept
    other = pack_state(make_algorithm(config.replace(embedding_dim=4), 20).init_server().shared)
    FedAvg(fraction_evaluate=0.0).start(
        grid, other, num_rounds=1, train_config=settings_record(config)
    )
    assert all(reply.has_error() for reply in replies)
    assert "'items' must be of shape (20, 9)" in replies[0].error.reason
    assert "\n" not in replies[0].error.reason


def test_private_state_goes_on_from_round_to_round(
    config: Config, grid_of: Callable[..., InProcessGrid]
) -> None:
    """With the weights frozen, the loss falls by the private steps alone."""

    class Frozen(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            _, metrics = super().aggregate_train(server_round, replies)
            return None, metrics

    result = rounds_of(grid_of(), Frozen(), config, 10)
    losses = [float(m["train-loss"]) for m in result.train_metrics_clientapp.values()]
    assert losses[-1] < losses[0]
    assert isinstance(result.train_metrics_clientapp[1], MetricRecord)
