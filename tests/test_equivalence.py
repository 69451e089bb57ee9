"""Loop and block, one node and many: the same numbers, whatever computes them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrecgel import simulate
from fedrecgel.client.site import Site
from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.algorithms.fedncf import OF_CHANGE, OF_GRADIENT
from fedrecgel.common.algorithms.registry import ALGORITHMS, make_algorithm, make_config
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.greeting import Hello
from fedrecgel.common.hashing import mix, user_keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.state import State, Update
from fedrecgel.simulation.grid import InProcessGrid

CHANGE = "fedncf:change"
"""FedNCF as in its paper: a variant of an algorithm."""
SCORERS = ("dot", "neumf", "squares")
SQUARES = {
    "scorer": "dot",
    "loss": "squares",
    "private_optimizer": "newton",
    "private_weight_decay": 0.5,
    "rho_private": 0.0,
    "average": 0.5,
}
"""The scorer of that name: a dot product with another loss, as preset tuned has it."""
TIMES = ("seconds", "round_seconds", "evaluation_seconds")
SMALL = {
    "embedding_dim": 4,
    "init_std": 0.1,
    "server_lr": 0.02,
    "private_steps": 2,
    "private_weight_decay": 1e-3,
    "item_weight_decay": 1e-3,
    "rho_shared": 0.1,
    "rho_private": 0.05,
    "item_lr": 0.2,
    "user_lr": 0.2,
    "local_lr": 0.1,
    "batch_size": 40,
    "local_epochs": 2,
}
Make = Callable[..., Any]


def known_to(case: str) -> set[str]:
    """The settings that an algorithm, or a variant of it, makes use of."""
    known = set(ALGORITHMS[base(case)].config_class.__dataclass_fields__)
    if base(case) == "fedncf":
        known -= set(OF_GRADIENT if case == CHANGE else OF_CHANGE)
    return known


def base(case: str) -> str:
    """Name of the algorithm that a case is of."""
    return case.partition(":")[0]


def settings_for(case: str, **more: Any) -> dict[str, Any]:
    values = {**SMALL, **more, **(SQUARES if more.get("scorer") == "squares" else {})}
    if case == CHANGE:
        values["sends"] = "change"
    return {name: value for name, value in values.items() if name in known_to(case)}


def scorers_of(case: str) -> tuple[str, ...]:
    """The scoring functions that can be chosen; one unnamed where there is no choice."""
    if case == CHANGE:
        return ("dot", "neumf")
    return SCORERS if "scorer" in known_to(case) else ("",)


WITH_SCORER = [(case, scorer) for case in (*ALGORITHMS, CHANGE) for scorer in scorers_of(case)]


# --- loop and block ------------------------------------------------------------------------------


def group(users: int = 23, num_items: int = 60) -> Interactions:
    """Users with 1 to 40 interactions; every third has an item twice, one has everything."""
    rows = []
    for user in range(users):
        order = np.argsort(mix("group", user, np.arange(num_items)))
        row = order[: 1 + user * 7 % 40].tolist()
        rows.append(row + row[:1] if user % 3 == 0 else row)
    rows[5] = list(range(num_items))
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    keys = user_keys(f"user {user}" for user in range(users))
    return Interactions(np.concatenate(rows), offsets, keys, num_items)


def reduced(algorithm: Algorithm[Any], data: Interactions) -> tuple[Update, State]:
    server = algorithm.init_server()
    private = algorithm.init_private(data.keys)
    updates, state = algorithm.update_users(Download(server.shared), private, data, 1)
    return Update.total(updates), state


def relative(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference in units of the largest expected value."""
    scale = max(float(expected.abs().max()), 1e-12)
    return float((found - expected).abs().max()) / scale


@pytest.mark.parametrize("block_size", [0, 1, 50, 400])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
@pytest.mark.parametrize(("name", "scorer"), WITH_SCORER)
def test_the_block_engine_is_the_loop(
    name: str, scorer: str, dtype: str, tolerance: float, block_size: int
) -> None:
    settings = settings_for(name, scorer=scorer, dtype=dtype)
    data, results = group(), []
    for engine in ("loop", "block"):
        config = make_config(base(name), {**settings, "engine": engine, "block_size": block_size})
        results.append(reduced(make_algorithm(config, data.num_items), data))
    (loop, loop_state), (block, block_state) = results
    assert (loop.users, loop.touched) == (block.users, block.touched)
    assert abs(loop.loss - block.loss) <= tolerance * abs(loop.loss)
    assert loop.dense.keys() == block.dense.keys()
    assert loop.rows.keys() == block.rows.keys()
    for key, (index, rows) in loop.rows.items():
        assert torch.equal(block.rows[key][0], index)
        assert relative(block.rows[key][1], rows) < tolerance
    for key, value in loop.dense.items():
        assert relative(block.dense[key], value) < tolerance
    # Adam divides by the gradient's own size: where that is nearly 0 its sign decides the step, so
    # in float32 the moments are compared and not the vector.
    skipped = {"user"} if dtype == "float32" and "adam_mean" in loop_state else set()
    for key in loop_state.keys() - skipped:
        if loop_state[key].is_floating_point():
            assert relative(block_state[key], loop_state[key]) < tolerance, key
        else:
            assert torch.equal(block_state[key], loop_state[key])


@pytest.mark.parametrize(("name", "scorer"), WITH_SCORER)
def test_the_order_of_a_cohort_does_not_matter(name: str, scorer: str) -> None:
    data = group()
    config = make_config(base(name), settings_for(name, scorer=scorer, dtype="float64"))
    algorithm = make_algorithm(config, data.num_items)
    order = np.argsort(mix("order", np.arange(data.num_users)))
    straight, state = reduced(algorithm, data)
    shuffled, shuffled_state = reduced(algorithm, data.take(order))
    for key, (_, rows) in straight.rows.items():
        assert relative(shuffled.rows[key][1], rows) < 1e-11
    for key, value in straight.dense.items():
        assert relative(shuffled.dense[key], value) < 1e-11
    for key, value in state.items():
        expected = value[torch.from_numpy(order)]
        assert relative(shuffled_state[key].double(), expected.double()) < 1e-9


# --- one node and many ---------------------------------------------------------------------------


def numbers_of(lines: list[dict[str, Any]]) -> list[float]:
    """Every number of the lines but times and how many replies came, in a fixed order."""
    found: list[float] = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                if key not in (*TIMES, "replies"):
                    walk(value[key])
        elif isinstance(value, int | float):
            found.append(float(value))

    walk({str(place): line for place, line in enumerate(lines)})
    return found


@pytest.mark.parametrize(
    ("name", "scorer"), [pair for pair in WITH_SCORER if pair != ("fedncf", "neumf")]
)
def test_any_grouping_into_nodes_gives_the_same_run(
    federation: Make, small_data: Dataset, name: str, scorer: str
) -> None:
    settings = settings_for(
        name, scorer=scorer, dtype="float64", rounds=20, fraction=0.4, select_by="full.ndcg@10"
    )
    runs = []
    for nodes in (1, 7, small_data.num_users):
        run = federation(small_data, base(name), nodes=nodes, **settings)
        outcome = run.run().outcome
        private = run.private()
        test = [sums.to_flat() for sums in outcome.test.values()]
        runs.append((outcome.best, private, run.lines, test))
    best, private, lines, test = runs[0]
    assert len(numbers_of(lines)) > 20 * 5
    for other_best, other_private, other_lines, other_test in runs[1:]:
        assert other_best.round == best.round
        for key, value in best.shared.items():
            assert float((other_best.shared[key] - value).abs().max()) < 1e-8
        for key, value in private.items():
            assert float((other_private[key] - value).abs().max()) < 1e-8
        np.testing.assert_allclose(numbers_of(other_lines), numbers_of(lines), rtol=1e-9)
        np.testing.assert_allclose(numbers_of(other_test), numbers_of(test), rtol=1e-9)


@pytest.mark.parametrize("scorer", SCORERS)
def test_other_groupings_agree_in_the_first_loss_in_float32(
    federation: Make, small_data: Dataset, scorer: str
) -> None:
    losses = []
    for nodes in (1, 7, small_data.num_users):
        settings = settings_for("fedrecgel", scorer=scorer, rounds=1)
        run = federation(small_data, "fedrecgel", nodes=nodes, **settings)
        run.run()
        losses.append(run.lines[0]["loss"])
    assert max(losses) - min(losses) <= 1e-6 * losses[0]


@pytest.mark.flower
def test_names_of_sites_do_not_matter(
    federation: Make, small_data: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With all users in every round: the server numbers users by site, so a cohort is another."""
    settings = settings_for("fedrecgel", scorer="dot", dtype="float64", rounds=5, fraction=1.0)
    plain = federation(small_data, nodes=5, **settings)
    expected = plain.run().outcome
    hello = Site.hello
    names = dict(
        zip((f"site-{i}" for i in range(5)), ["zurich", "amiens", "Oslo", "x", "b"], strict=True)
    )

    def renamed(site: Site) -> Hello:
        return Hello(**{**vars(hello(site)), "site": names[site.name]})

    monkeypatch.setattr(Site, "hello", renamed)
    other = federation(small_data, nodes=5, **settings)
    found = other.run().outcome
    assert [member.site for member in found.roster.members] == sorted(names.values())
    assert float((found.best.shared["items"] - expected.best.shared["items"]).abs().max()) < 1e-10
    np.testing.assert_allclose(numbers_of(other.lines), numbers_of(plain.lines), rtol=1e-9)


class LastFirstGrid(InProcessGrid):
    """Answers the messages of a round from the last to the first."""

    def get_node_ids(self) -> list[int]:
        return super().get_node_ids()[::-1]

    def pull_messages(self, message_ids: Any) -> Any:
        return super().pull_messages(list(message_ids)[::-1])


@pytest.mark.flower
@pytest.mark.parametrize("scorer", SCORERS)
@pytest.mark.parametrize("nodes", [3, 40])
def test_the_order_of_replies_does_not_change_a_bit(
    federation: Make, on_disk: Any, nodes: int, scorer: str
) -> None:
    train = [[u % 10, (u * 3 + 1) % 10] for u in range(40)]
    data = on_disk(make_dataset(train, [-1] * 40, [(u + 5) % 10 for u in range(40)], 10))
    settings = settings_for("fedrecgel", scorer=scorer, rounds=3, fraction=1.0)
    runs = []
    for kind in (InProcessGrid, LastFirstGrid):
        run = federation(data, nodes=nodes, **settings)
        runs.append((run.run(run.grid(kind)).outcome.best.shared, numbers_of(run.lines)))
    (shared, lines), (other, other_lines) = runs
    assert lines == other_lines
    for name, value in shared.items():
        assert torch.equal(other[name], value), name


# --- the same seed, the same bytes ---------------------------------------------------------------


def lines_without_times(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines]


@pytest.mark.parametrize("scorer", SCORERS)
def test_a_repeated_run_is_equal_to_the_byte(
    small_data: Dataset, tmp_path: Path, scorer: str
) -> None:
    settings = settings_for("fedrecgel", scorer=scorer, rounds=6, fraction=0.5, evaluate_every=2)
    folders = [tmp_path / name for name in ("one", "two", "other seed")]
    for folder, seed in zip(folders, (3, 3, 4), strict=True):
        simulate(small_data, folder, preset="paper", nodes=3, seed=seed, **settings)
    one, two, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert one == two
    assert one != other
    first, second, third = (lines_without_times(folder) for folder in folders)
    assert first == second
    assert first != third
    assert len(first) == 3
