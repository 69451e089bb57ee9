"""What every algorithm of the registry must do; a new one is tested by being registered.

The data are a checkerboard, 20 users by 20 items: users like the items of their own parity. Each
has two of the ten held out; all items are equally popular, so popularity knows nothing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch

from fedrecgel import prepare, simulate
from fedrecgel.client import site as site_module
from fedrecgel.common.algorithms.base import Algorithm, Download, ServerState
from fedrecgel.common.algorithms.fedncf import OF_CHANGE, OF_GRADIENT, LocalFedNCF
from fedrecgel.common.algorithms.registry import ALGORITHMS, make_algorithm, make_config
from fedrecgel.common.algorithms.view import ScorerView
from fedrecgel.common.config import Config, setting
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.hashing import Keys, mix, user_keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.scorers.dot import DotScorer
from fedrecgel.common.state import State, Tensors, Update
from fedrecgel.simulation.references import popularity_report

Make = Callable[..., Any]
SIZE = 20
LEARN = {
    "scorer": "dot",
    "embedding_dim": 8,
    "init_std": 0.1,
    "loss": "mean",
    "server_lr": 0.05,
    "local_lr": 0.05,
    "private_steps": 3,
    "fraction": 1.0,
    "rounds": 40,
    "evaluate_every": 10,
}
CHANGE = "fedncf:change"
"""FedNCF as in its paper: a variant of an algorithm."""
CASES = (*ALGORITHMS, CHANGE)
NO_PENALTIES = {"sparsity": 0.0, "difference": 0.0}
OWN: dict[str, dict[str, Any]] = {
    "fedmf": {"item_lr": 0.1, "local_lr": 2.0},
    "pfedrec": {"item_lr": 0.02, "local_lr": 3.0},
    "fedrap": {"item_lr": 0.001, "local_lr": 5.0, "local_epochs": 3, **NO_PENALTIES},
    "cofedrec": {"item_lr": 0.02, "local_lr": 0.5, "clusters": 4},
    CHANGE: {"sends": "change", "local_lr": 0.02},
}
"""Settings with which an algorithm learns the checkerboard, where they are not as in `LEARN`."""
FLAT: dict[str, dict[str, Any]] = {
    "fedrap": {"weight_decay": 0.0},
    "gpfedrec": {"pull": 0.0},
    "perfedrec": {"weight_decay": 0.0},
    CHANGE: {"row_average": False},  # else counts of who touched a row are sent
}
"""Settings without which nothing moves where the loss is flat."""
LEARNED = {"user", "weight", "bias"}
"""Private tensors that a step changes by a gradient."""


def base(case: str) -> str:
    """Name of the algorithm that a case is of."""
    return case.partition(":")[0]


def known_to(case: str) -> set[str]:
    """The settings that a case makes use of."""
    known = set(ALGORITHMS[base(case)].config_class.__dataclass_fields__)
    if base(case) == "fedncf":
        known -= set(OF_GRADIENT if case == CHANGE else OF_CHANGE)
    return known


def settings_for(case: str, **more: Any) -> dict[str, Any]:
    """The settings that the algorithm has."""
    settings = {**LEARN, **OWN.get(case, {}), **more}
    return {key: value for key, value in settings.items() if key in known_to(case)}


def made(case: str, num_items: int, **more: Any) -> Algorithm[Any]:
    return make_algorithm(make_config(base(case), settings_for(case, **more)), num_items)


def scorers_of(case: str) -> tuple[str, ...]:
    """The scoring functions that can be chosen; one unnamed where there is no choice."""
    return ("dot", "neumf") if "scorer" in known_to(case) else ("",)


WITH_SCORER = [(case, scorer) for case in CASES for scorer in scorers_of(case)]


def flatten(server: ServerState, private: State) -> None:
    """Logits of 100 and more for everything: the loss of positives alone is flat."""
    shared = server.shared
    last = max((name for name in private if name.startswith("mlp.")), default="")
    if last:
        private[last.replace("weight", "bias")].fill_(200.0)
        private[last].zero_()
    elif "bias" in private:
        private["weight"].zero_()
        private["bias"].fill_(200.0)
    elif "output.bias" in shared:
        private["user"].zero_()
        shared["output.bias"].fill_(200.0)
        shared["items"].zero_()
    elif shared["items"].shape[1] > private["user"].shape[1]:
        private["user"].zero_()
        shared["items"][:, -1] = 200.0
    else:
        private["user"].fill_(5.0)
        shared["items"].fill_(20.0)


@pytest.fixture
def checkerboard(on_disk: Callable[[Dataset], Dataset]) -> Dataset:
    own = [[item for item in range(SIZE) if item % 2 == user % 2] for user in range(SIZE)]
    validation = [row[user // 2] for user, row in enumerate(own)]
    test = [row[(user // 2 + 1) % 10] for user, row in enumerate(own)]
    train = [
        [item for item in row if item not in (v, t)]
        for row, v, t in zip(own, validation, test, strict=True)
    ]
    return on_disk(make_dataset(train, validation, test, SIZE, num_candidates=10))


def hand_made(rows: list[list[int]], num_items: int) -> Interactions:
    items = np.array([item for row in rows for item in row], dtype=np.int64)
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
    return Interactions(items, offsets, user_keys(f"user {u}" for u in range(len(rows))), num_items)


@pytest.mark.parametrize("name", CASES)
class TestEveryAlgorithm:
    def test_it_learns_the_checkerboard(
        self, federation: Make, checkerboard: Dataset, name: str
    ) -> None:
        run = federation(checkerboard, base(name), nodes=2, **settings_for(name))
        outcome = run.run().outcome
        losses = [line["loss"] for line in run.lines]
        assert losses[-1] < 0.6 * losses[0]
        popular = popularity_report(checkerboard, "test")
        for ranking in ("sampled", "full"):
            found = outcome.test[ranking].value("hr@5")
            assert found > popular[ranking]["hr@5"]["value"] + 0.3
            assert found > 0.9

    def test_the_same_seed_gives_the_same_bytes(
        self, federation: Make, checkerboard: Dataset, name: str
    ) -> None:
        runs = []
        for seed in (5, 5, 6):
            settings = settings_for(name, rounds=3, fraction=0.5, seed=seed)
            run = federation(checkerboard, base(name), nodes=3, **settings)
            runs.append(run.run().outcome.best)
        one, two, other = (best.server.to_flat() for best in runs)
        assert one.keys() == two.keys()
        assert all(v.numpy().tobytes() == two[key].numpy().tobytes() for key, v in one.items())
        assert any(key not in other or not torch.equal(v, other[key]) for key, v in one.items())

    def test_users_without_interactions_are_skipped_and_counted(
        self, federation: Make, on_disk: Callable[[Dataset], Dataset], name: str
    ) -> None:
        """U009, U050, U075: they are no reason to stop, and take no place in a cohort."""
        train = [[], [0, 1], [], [2], [1, 3]]
        data = on_disk(make_dataset(train, [2, 2, -1, 0, -1], [3, 3, 1, 1, 0], 5))
        run = federation(data, base(name), nodes=5, **settings_for(name, rounds=2))
        outcome = run.run().outcome
        assert run.failures == []
        assert outcome.roster.num_users == 3
        assert [line["users"] for line in run.lines] == [3, 3]
        assert outcome.test["full"].users == 3
        assert all(torch.isfinite(value).all() for value in outcome.best.shared.values())

    def test_a_user_with_everything_trains_without_negatives(
        self, federation: Make, on_disk: Callable[[Dataset], Dataset], name: str
    ) -> None:
        """U057: ten items; A has all, B nine, C three."""
        train = [list(range(10)), list(range(9)), [0, 1, 2]]
        data = on_disk(make_dataset(train, [-1, -1, 5], [-1, 9, 7], 10))
        run = federation(data, base(name), nodes=2, **settings_for(name, rounds=3))
        outcome = run.run().outcome
        assert [line["users"] for line in run.lines] == [3, 3, 3]
        assert all(torch.isfinite(value).all() for value in outcome.best.shared.values())

    def test_radii_and_norms_stay_finite_at_the_start(self, name: str) -> None:
        """All embeddings 0: the first private gradient of the dot product is exactly 0."""
        algorithm = made(name, 6, init_std=0.0)
        data = hand_made([[0, 1, 2]], 6)
        server, private = algorithm.init_server(), algorithm.init_private(data.keys)
        for round in (1, 2):
            updates, private = algorithm.update_users(Download(server.shared), private, data, round)
            key = -1 if algorithm.reduce == "sum" else 0
            algorithm.aggregate(server, {key: updates[0]}, round)
        assert all(torch.isfinite(v).all() for v in (*server.to_flat().values(), *private.values()))

    def test_initial_state_is_a_function_of_seed_and_key(self, name: str) -> None:
        algorithm = made(name, 6)
        other = made(name, 6, seed=1)
        keys = user_keys(["a", "b", "c"])
        together, apart = algorithm.init_private(keys), algorithm.init_private(keys[1:2])
        assert all(torch.equal(value[1], apart[key][0]) for key, value in together.items())
        different = other.init_private(keys)
        assert any(not torch.equal(value, different[key]) for key, value in together.items())
        one, two = algorithm.init_server().shared, algorithm.init_server().shared
        assert all(torch.equal(one[key], two[key]) for key in one)
        different |= other.init_server().shared  # cofedrec's server begins with labels of nobody
        assert any(not torch.equal(v, different[key]) for key, v in {**together, **one}.items())

    def test_declared_tensors_are_the_ones_there_are(self, name: str) -> None:
        algorithm = made(name, 6)
        tensors, data = algorithm.tensors, hand_made([[0, 1], [2]], 6)
        server, private = algorithm.init_server(), algorithm.init_private(data.keys)
        assert server.shared.keys() == tensors.shared
        assert private.keys() == tensors.private
        assert not tensors.shared & tensors.private
        assert tensors.item_rows <= tensors.sent
        updates, state = algorithm.update_users(Download(server.shared), private, data, 1)
        for update in updates:
            assert update.rows.keys() == tensors.item_rows
            assert update.rows.keys() | update.dense.keys() == tensors.sent
        assert {k: v.shape for k, v in state.items()} == {k: v.shape for k, v in private.items()}

    @pytest.mark.parametrize("engine", ["block", "loop"])
    def test_a_round_changes_none_of_its_inputs(self, name: str, engine: str) -> None:
        algorithm = made(name, 6, engine=engine)
        data = hand_made([[0, 1, 1], [2]], 6)
        server, private = algorithm.init_server(), algorithm.init_private(data.keys)
        before = [value.clone() for value in (*server.shared.values(), *private.values())]
        algorithm.update_users(Download(server.shared), private, data, 1)
        after = [*server.shared.values(), *private.values()]
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))

    def test_its_config_round_trips(self, name: str) -> None:
        config = make_config(base(name), settings_for(name, seed=9))
        assert make_config(base(name), config.to_flat()) == config
        as_text = {key: str(value) for key, value in config.to_flat().items()}
        assert make_config(base(name), as_text) == config
        expected = LocalFedNCF if name == CHANGE else ALGORITHMS[name]
        assert type(make_algorithm(config, 5)) is expected

    def test_only_touched_rows_are_sent(self, name: str) -> None:
        algorithm = made(name, 500, num_negatives=2)
        data = hand_made([[7, 9], [400]], 500)
        server, private = algorithm.init_server(), algorithm.init_private(data.keys)
        updates, _ = algorithm.update_users(Download(server.shared), private, data, 1)
        total = Update.total(updates)
        for name in algorithm.tensors.item_rows:
            index = total.rows[name][0].tolist()
            assert {7, 9, 400} <= set(index)
            assert len(index) <= 9
            assert index == sorted(set(index))


@pytest.mark.parametrize("engine", ["block", "loop"])
@pytest.mark.parametrize(("name", "scorer"), WITH_SCORER)
def test_a_zero_gradient_leaves_everything_as_it_is(name: str, scorer: str, engine: str) -> None:
    """U074: logits of 100 for positives make the loss flat; no division by the norm of 0."""
    more = {"scorer": scorer, "engine": engine, "num_negatives": 0, "dtype": "float32"}
    algorithm = made(name, 4, **more, **FLAT.get(name, {}))
    server, data = algorithm.init_server(), hand_made([[0, 1], [2]], 4)
    private = algorithm.init_private(data.keys)
    flatten(server, private)
    updates, state = algorithm.update_users(Download(server.shared), private, data, 1)
    for update in updates:
        assert update.loss == 0
        assert not any(rows.any() for _, rows in update.rows.values())
        dense = update.dense.keys() - algorithm.tensors.uploaded
        assert not any(update.dense[name].any() for name in dense)
    assert all(torch.equal(state[key], private[key]) for key in LEARNED & private.keys())


@pytest.mark.parametrize(("name", "scorer"), WITH_SCORER)
def test_catalogue_and_candidates_give_the_same_scores(name: str, scorer: str) -> None:
    algorithm = made(name, 9, scorer=scorer, dtype="float64")
    data = hand_made([[0, 1, 2], [3]], 9)
    private, server = algorithm.init_private(data.keys), algorithm.init_server()
    users = torch.tensor([1, 0])
    items = torch.tensor([[8, 0, 3], [1, 1, 2]])
    for _ in range(2):  # never trained, and trained
        view = algorithm.personal_view(Download(server.shared), private)
        assert (view.num_users, view.num_items) == (2, 9)
        full = view.catalogue(users)
        assert torch.allclose(view.candidates(users, items), full.gather(1, items), atol=1e-12)
        _, private = algorithm.update_users(Download(server.shared), private, data, 1)


@pytest.mark.parametrize("engine", ["block", "loop"])
@pytest.mark.parametrize("scorer", ["dot", "neumf"])
def test_both_radii_0_are_fedncf_bit_for_bit(
    federation: Make, checkerboard: Dataset, scorer: str, engine: str
) -> None:
    more = {"scorer": scorer, "rounds": 3, "engine": engine, "embedding_dim": 4, "fraction": 0.5}
    plain = federation(checkerboard, "fedncf", nodes=2, **settings_for("fedncf", **more))
    sharp = federation(
        checkerboard,
        "fedrecgel",
        nodes=2,
        **settings_for("fedrecgel", rho_shared=0.0, rho_private=0.0, **more),
    )
    expected, found = plain.run().outcome.best, sharp.run().outcome.best
    for key, value in expected.shared.items():
        assert torch.equal(found.shared[key], value)
    assert [line["loss"] for line in plain.lines] == [line["loss"] for line in sharp.lines]
    other = federation(checkerboard, "fedrecgel", nodes=2, **settings_for("fedrecgel", **more))
    moved = other.run().outcome.best.shared
    assert any(not torch.equal(moved[key], value) for key, value in expected.shared.items())


def test_a_memorising_user_alone_is_at_chance() -> None:
    """U063: held-out items are drawn as negatives like any other unseen item.

    Users have disjoint worlds (nothing to learn from each other), so after many rounds a held-out
    item ranks among the unseen items of its user as by lot.
    """
    config = make_config("fedncf", settings_for("fedncf", num_negatives=2, fraction=1.0))
    users, own = 40, 20
    rows = [[u * own + i for i in range(6)] for u in range(users)]
    algorithm = make_algorithm(config, users * own)
    data = hand_made(rows, users * own)
    server, private = algorithm.init_server(), algorithm.init_private(data.keys)
    for round in range(1, 31):
        updates, private = algorithm.update_users(Download(server.shared), private, data, round)
        algorithm.aggregate(server, {-1: updates[0]}, round)
    view = algorithm.personal_view(Download(server.shared), private)
    scores = view.catalogue(torch.arange(users))
    trained, ranks = [], []
    for u in range(users):
        mine = scores[u, u * own : (u + 1) * own]
        trained.append(float(mine[:6].min() > mine[6:].median()))
        ranks.append(float((mine[7:] > mine[6]).double().mean()))  # item 6 is held out
    assert np.mean(trained) > 0.9
    assert abs(np.mean(ranks) - 0.5) < 3 * 0.3 / np.sqrt(users)


@pytest.mark.parametrize(("leaky", "low", "high"), [(False, 0.36, 0.64), (True, 0.0, 0.1)])
def test_leaked_negatives_put_the_held_out_item_on_top_with_nobody_to_learn_from(
    leaky: bool, low: float, high: float
) -> None:
    """U063: one user and 20 items; what is never drawn as a negative is not pushed down."""
    settings = {"embedding_dim": 8, "item_lr": 0.1, "num_negatives": 2, "score_with": "global"}
    above = []
    for seed in range(40):
        algorithm = make_algorithm(make_config("pfedrec", {**settings, "seed": seed}), SIZE)
        items = np.argsort(mix("only", seed, np.arange(SIZE)))
        data = hand_made([items[:6].tolist()], SIZE)
        if leaky:
            data = replace(data, barred=(items[6:7], np.array([0, 1])))
        server, private = algorithm.init_server(), algorithm.init_private(data.keys)
        for round in range(1, 31):
            updates, private = algorithm.update_users(Download(server.shared), private, data, round)
            algorithm.aggregate(server, {-1: updates[0]}, round)
        view = algorithm.personal_view(Download(server.shared), private)
        scores = view.catalogue(torch.zeros(1, dtype=torch.int64))[0]
        above.append(float((scores[items[7:]] > scores[items[6]]).double().mean()))
    assert low <= np.mean(above) <= high


# --- an algorithm that needs more of the interface -----------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ToyConfig(Config):
    """Settings of the toy."""

    algorithm: ClassVar[str] = "toy"

    step: float = setting(0.5, "length of a step", low=0)


class Toy(Algorithm[ToyConfig]):
    """Counts interactions per item, user by user, and tells every user how often they came.

    It needs ``per-user`` updates and an addressed tensor: ``turn`` (1,), how many rounds the server
    has accepted of a user, which the user checks against their own private count.
    """

    name: ClassVar[str] = "toy"
    config_class: ClassVar[type[Config]] = ToyConfig
    reduce: ClassVar[Literal["sum", "per-user"]] = "per-user"
    seen: ClassVar[list[list[int]]] = []

    def __init__(self, config: ToyConfig, num_items: int) -> None:
        super().__init__(config, num_items)
        self.scorer = DotScorer(1)
        self.tensors = Tensors(
            shared=frozenset({"items"}),
            item_rows=frozenset({"items"}),
            private=frozenset({"user", "count"}),
            addressed=frozenset({"turn"}),
        )

    def init_server(self) -> ServerState:
        return ServerState({"items": torch.zeros(self.num_items, 2, dtype=self.dtype)})

    def init_private(self, keys: Keys) -> State:
        count = torch.zeros(len(keys), 1, dtype=torch.int64)
        return {"user": torch.ones(len(keys), 1, dtype=self.dtype), "count": count}

    def download(self, server: ServerState, users: torch.Tensor) -> Download:
        turns = [server.auxiliary.get(f"turn {int(user)}", torch.zeros(1)) for user in users]
        return Download(server.shared, {"turn": torch.stack(turns)})

    def local_update(
        self, download: State, private: State, data: Interactions, round: int
    ) -> tuple[Update, State]:
        assert data.num_users == 1
        assert int(download["turn"]) == int(private["count"])
        items = torch.from_numpy(data.distinct[0])
        rows = torch.zeros(len(items), 2, dtype=self.dtype)
        rows[:, 1] = self.config.step
        update = Update({"items": (items, rows)}, {}, 1, 1.0 / round, len(items))
        return update, {**private, "count": private["count"] + 1}

    def aggregate(self, server: ServerState, updates: dict[int, Update], round: int) -> None:
        self.seen.append(list(updates))
        for user, update in updates.items():
            index, rows = update.rows["items"]
            server.shared["items"][index] += rows
            turn = server.auxiliary.get(f"turn {user}", torch.zeros(1))
            server.auxiliary[f"turn {user}"] = turn + 1

    def personal_view(self, download: Download, private: State) -> ScorerView:
        assert torch.equal(download.addressed["turn"].long(), private["count"])
        return ScorerView(self.scorer, download.shared, private["user"])


@pytest.mark.flower
@pytest.mark.parametrize("nodes", [1, 3, 20])
def test_per_user_updates_and_addressed_tensors_pass_through_unchanged(
    federation: Make, checkerboard: Dataset, monkeypatch: pytest.MonkeyPatch, nodes: int
) -> None:
    monkeypatch.setitem(ALGORITHMS, "toy", Toy)
    monkeypatch.setattr(Toy, "seen", [])
    site_module._algorithm.cache_clear()
    # One round: a later one may be chosen on validation, and the toy keeps nothing to go back.
    run = federation(checkerboard, "toy", nodes=nodes, rounds=4, fraction=0.5, evaluate_every=4)
    outcome = run.run().outcome
    assert run.failures == []
    assert [len(users) for users in Toy.seen] == [10] * 4
    assert all(users == sorted(set(users)) for users in Toy.seen)
    assert [line["loss"] for line in run.lines] == [1.0, 0.5, pytest.approx(1 / 3), 0.25]
    expected = np.zeros(SIZE)
    for users in Toy.seen:
        for user in users:
            expected[checkerboard.train_of(user)] += 0.5
    assert outcome.best.shared["items"][:, 1].tolist() == expected.tolist()


@pytest.mark.flower
def test_addressed_tensors_of_the_best_round_are_restored_too(
    federation: Make, checkerboard: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(ALGORITHMS, "toy", Toy)
    monkeypatch.setattr(Toy, "seen", [])
    site_module._algorithm.cache_clear()
    run = federation(checkerboard, "toy", nodes=2, rounds=4, fraction=0.5, evaluate_every=1)
    assert run.run().outcome.best.round < 4  # else there is nothing to restore


@pytest.mark.parametrize("items", [60, 3000])
def test_the_same_rates_do_on_any_catalogue(tmp_path: Path, items: int) -> None:
    """U081: no learning rate is multiplied by the catalogue's size, and the result says which."""
    data = prepare("synthetic", tmp_path / "data", users=100, items=items, interactions=12)
    settings = {"server_lr": 0.05, "rounds": 8, "evaluate_every": 4}
    result = simulate(data, tmp_path / "run", log="none", **settings)
    assert result.values["settings"]["server-lr"] == 0.05
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert 0 < losses[1] < losses[0] < 6  # half a unit for each of some twelve items, at most
