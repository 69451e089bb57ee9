"""A finished run: recommendations, numbers measured again, and what is missing said in one line."""

import gc
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecgel import Result, simulate
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.data.prepare import prepare
from fedrecgel.common.errors import ConfigError, DataError, FedRecError, RunError

SETTINGS: dict[str, Any] = {
    "preset": "paper",
    "scorer": "dot",
    "embedding_dim": 4,
    "init_std": 0.1,
    "server_lr": 0.05,
    "rounds": 6,
    "evaluate_every": 2,
    "fraction": 0.3,
    "nodes": 3,
}


@pytest.fixture(scope="module")
def finished(small_data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulate(small_data, tmp_path_factory.mktemp("finished") / "run", **SETTINGS).path


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Result:
    """A copy of a finished run, for a test to spoil."""
    return Result.open(shutil.copytree(finished, tmp_path / "run"))


def test_a_run_ends_with_its_numbers(run: Result, small_data: Dataset) -> None:
    """U012, U064, U069, U070: both rankings with errors, and denominators beside them."""
    values = run.values
    for part in ("test", "popularity", "chance"):
        for ranking in ("sampled", "full"):
            for k in (5, 10, 15, 20):
                for kind in ("hr", "ndcg"):
                    cell = values[part][ranking][f"{kind}@{k}"]
                    assert 0 <= cell["value"] <= 1
                    assert cell["se"] >= 0
    assert values["users"]["evaluated"] == values["users"]["eligible"] == small_data.num_users
    assert 0 < values["users"]["never_trained"] < small_data.num_users
    assert values["items"]["all"] == small_data.num_items
    assert values["settings"]["scorer"] == "dot"
    assert values["data"]["hash"] == small_data.hash
    assert {"flwr", "torch", "numpy", "python", "fedrecgel"} <= values["versions"].keys()
    assert values["training"]["seconds"] > 0
    assert values["training"]["bytes_up_per_user"] < values["training"]["bytes_down_per_user"]
    assert "hr@10" in run.table().lower() or "HR@10" in run.table()
    assert run.metric("full.ndcg@10") == values["test"]["full"]["ndcg@10"]["value"]
    assert {path.name for path in run.path.iterdir()} >= {
        "config.json",
        "metrics.jsonl",
        "result.json",
        "model.safetensors",
        "curves.png",
        "private",
    }


def test_metrics_of_the_rounds_are_kept_line_by_line(run: Result) -> None:
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [2, 4, 6]
    for line in lines:
        assert line["loss"] > 0
        assert 0 <= line["validation"]["sampled"]["hr@10"]["value"] <= 1
        assert line["failures"] == 0
        assert line["seconds"] >= 0
        assert "test" not in line  # U067: the test items are looked at once, at the end
    best = max(lines, key=lambda line: line["validation"]["sampled"]["ndcg@10"]["value"])
    assert run.round == best["round"]
    assert "validation" in run.values["round"]["by"]


def test_measuring_again_gives_the_same_numbers(run: Result) -> None:
    again = Result.open(run.path).evaluate()
    for part in ("test", "popularity", "chance", "users", "items", "overlap", "candidates"):
        assert_close(again[part], run.values[part], part)


def assert_close(found: Any, expected: Any, where: str) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key, value in expected.items():
            assert_close(found[key], value, f"{where}.{key}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=1e-9), where
    else:
        assert found == expected, where


def test_leaked_negatives_are_said_loudly(small_data: Dataset, tmp_path: Path) -> None:
    """U063: above the numbers and among the warnings, in both reports."""
    settings: dict[str, Any] = {"rounds": 1, "negatives": "leaky", "log": "none"}
    leaky = simulate(small_data, tmp_path / "run", algorithm="fedmf", **settings)
    for values in (leaky.values, leaky.evaluate()):
        assert values["warnings"][0].startswith("LEAKED NEGATIVES")
    text = leaky.table()
    assert text.index("LEAKED NEGATIVES") < text.index("hr@10") < text.rindex("LEAKED NEGATIVES")


def test_measuring_validation_again_gives_the_chosen_rounds_value(run: Result) -> None:
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    (chosen,) = [line for line in lines if line["round"] == run.round]
    again = run.evaluate("validation")
    expected = chosen["validation"]["sampled"]
    found = {name: again["validation"]["sampled"][name] for name in expected}
    assert_close(found, expected, "validation")


def test_users_who_cannot_train_are_measured_neither_time(
    on_disk: Callable[[Dataset], Dataset], tmp_path: Path
) -> None:
    """U050 with min-interactions 0: a user with an empty train set is counted, not evaluated."""
    train = [[0, 1], [], [2, 3], [4], [1, 4, 5], []]
    data = on_disk(make_dataset(train, [2, 3, 4, -1, 0, -1], [3, 4, 5, 0, 2, 1], 8))
    result = simulate(data, tmp_path / "run", **{**SETTINGS, "fraction": 1.0})
    assert result.values["users"]["evaluated"] == 4
    assert result.values["users"]["eligible"] == 6
    assert_close(result.evaluate()["test"], result.values["test"], "test")
    assert_close(result.evaluate()["users"], result.values["users"], "users")


def test_items_that_were_never_trained_are_counted_both_times(
    on_disk: Callable[[Dataset], Dataset], tmp_path: Path
) -> None:
    """U054: without negatives item 7 has no gradient; it is a test item all the same."""
    data = on_disk(make_dataset([[0, 1], [2, 3], [4]], [2, 1, 0], [7, 5, 6], 8))
    result = simulate(data, tmp_path / "run", **{**SETTINGS, "num_negatives": 0, "fraction": 1.0})
    items = result.values["items"]
    assert (items["all"], items["never_trained"]) == (8, 3)
    assert items["positives_never_trained"] == 3
    assert_close(result.evaluate()["items"], items, "items")
    assert result.evaluate("validation")["items"]["never_trained"] == 3


def test_nothing_the_user_knows_is_recommended(run: Result, small_data: Dataset) -> None:
    """U066: not the train items, and not the held-out ones either, unless asked for."""
    for index, user in enumerate(small_data.user_ids):
        known = {*small_data.train_of(index).tolist()}
        known |= {int(small_data.validation_items[index]), int(small_data.test_items[index])}
        names = {str(small_data.item_ids[item]) for item in known}
        found = run.recommend(str(user), k=30)
        items = [entry.item for entry in found]
        assert len(items) == len(set(items)) == small_data.num_items - len(known)
        assert not set(items) & names
        assert [e.score for e in found] == sorted((e.score for e in found), reverse=True)
    assert len(run.recommend(str(small_data.user_ids[0]), k=30, repeat=True)) == 30
    assert len(run.recommend(str(small_data.user_ids[0]))) == 10


def test_recommendations_are_those_of_the_scores_in_result(run: Result) -> None:
    """Each user's own vector is used: lists differ between users."""
    lists = {tuple(e.item for e in run.recommend(str(u), 5)) for u in run.data.user_ids}
    assert len(lists) > 10


def test_a_trained_user_without_a_held_out_item_keeps_the_trained_vector(
    on_disk: Callable[[Dataset], Dataset], tmp_path: Path
) -> None:
    train = [[0, 1, 2], [3, 4], [0, 5]]
    data = on_disk(make_dataset(train, [-1, 0, 1], [-1, 1, 2], 8))
    result = simulate(data, tmp_path / "run", **{**SETTINGS, "fraction": 1.0})
    initial = result.algorithm.init_private(data.user_keys)["user"]
    assert result.values["users"]["never_trained"] == 0
    private, found = result._private(np.arange(3)), result.store().chosen(np.arange(3)) > 0
    assert found.all()
    assert not (private["user"][0] == initial[0]).all()


def test_somebody_new_gets_a_list_without_what_they_gave(run: Result) -> None:
    given = ["i1", "i2", "i3"]
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    found = run.recommend_new(given, k=27)
    assert len(found) == 27
    assert not {entry.item for entry in found} & set(given)
    assert found == run.recommend_new(given, k=27)
    assert found[:5] != run.recommend_new(["i20", "i21"], k=27)[:5]
    # Nothing of it is kept, and the shared model is as it was.
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("items", "message"), [([], "at least one item"), (["i1", "nonsense"], "no item 'nonsense'")]
)
def test_somebody_new_with_nothing_usable_is_told_so(
    run: Result, items: list[str], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        run.recommend_new(items)


def test_an_unknown_user_is_told_the_nearest(run: Result) -> None:
    with pytest.raises(DataError, match="no user 'Quixote-00-Z' among the 24 users"):
        run.recommend("Quixote-00-Z")


@pytest.mark.parametrize("k", [0, -3])
def test_a_list_of_no_items_is_refused(run: Result, k: int) -> None:
    with pytest.raises(FedRecError, match="k must be at least 1"):
        run.recommend(str(run.data.user_ids[0]), k=k)


# --- damage --------------------------------------------------------------------------------------


def test_the_servers_part_of_a_deployed_run_says_where_users_can_be_asked(run: Result) -> None:
    path = run.path / "config.json"
    head = json.loads(path.read_text())
    del head["data"]
    path.write_text(json.dumps(head))
    with pytest.raises(DataError, match=r"sites with files of their own; .* fedrecgel serve"):
        Result.open(run.path).recommend("Quixote-00-Zx")


def damage(run: Result, name: str, content: bytes | None) -> Path:
    path = run.path / name
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("config.json", None),
        ("config.json", b"{"),
        ("config.json", b"[]"),
        ("config.json", b"{}"),
        ("result.json", None),
        ("result.json", b""),
        ("result.json", b"null"),
        ("model.safetensors", None),
        ("model.safetensors", b""),
        ("model.safetensors", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"),
        ("private", None),
        ("private/store.json", None),
        ("private/store.json", b"{"),
        ("private/store.json", b"{}"),
        ("private/user.npy", None),
        ("private/user.npy", b""),
        ("private/rounds.npy", b"\x93NUMPY"),
        ("private/chosen.npy", None),
    ],
)
def test_a_damaged_run_is_one_line_and_stays_as_it_is(
    run: Result, name: str, content: bytes | None
) -> None:
    user = str(run.data.user_ids[0])
    damage(run, name, content)
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(RunError) as caught:
        Result.open(run.path).recommend(user)
    assert "\n" not in str(caught.value)
    assert str(run.path) in str(caught.value)
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_a_data_set_that_was_changed_is_noticed(small_data: Dataset, tmp_path: Path) -> None:
    assert small_data.path is not None
    path = shutil.copytree(small_data.path, tmp_path / "data")
    run = simulate(path, tmp_path / "run", **{**SETTINGS, "rounds": 1})
    prepare("synthetic", path, users=100, overwrite=True)
    with pytest.raises(DataError, match="is not the data set of this run any more"):
        Result.open(run.path).recommend("anybody")
    shutil.rmtree(path)
    with pytest.raises(FedRecError, match=str(path)):
        Result.open(run.path).recommend("anybody")


# --- making a run --------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [0, -1, 25])
def test_an_impossible_number_of_nodes_is_refused(
    small_data: Dataset, tmp_path: Path, nodes: int
) -> None:
    with pytest.raises(ConfigError, match="between 1 and the number of users, 24"):
        simulate(small_data, tmp_path / "run", **{**SETTINGS, "nodes": nodes})
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux to be seen")
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_has_ended_holds_none_of_its_private_files(
    small_data: Dataset, tmp_path: Path, fails: bool
) -> None:
    """Else the disk stays full of runs that were removed long ago."""

    def on_round(line: dict[str, Any]) -> None:
        held.append(str(tmp_path) in Path("/proc/self/maps").read_text())
        if fails:
            raise RunError("enough")

    held: list[bool] = []
    with pytest.raises(RunError) if fails else nullcontext():
        simulate(small_data, tmp_path / "run", rounds=2, log="none", on_round=on_round)
    gc.collect()
    assert held[0]
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()


def test_a_folder_in_use_is_left_alone(run: Result, small_data: Dataset, tmp_path: Path) -> None:
    before = (run.path / "result.json").read_bytes()
    with pytest.raises(RunError, match="add --overwrite"):
        simulate(small_data, run.path, **SETTINGS)
    assert (run.path / "result.json").read_bytes() == before
    again = simulate(small_data, run.path, overwrite=True, **{**SETTINGS, "seed": 1})
    assert again.values["seed"] == 1
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    with pytest.raises(RunError, match="not a run of fedrecgel"):
        simulate(small_data, tmp_path / "mine", overwrite=True, **SETTINGS)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "mine"


def test_a_wrong_setting_leaves_the_old_run_where_it_is(run: Result, small_data: Dataset) -> None:
    with pytest.raises(ConfigError, match="did you mean 'server-lr'"):
        simulate(small_data, run.path, overwrite=True, **{**SETTINGS, "server_l": 1})
    assert Result.open(run.path).values == run.values


def test_a_data_set_in_memory_cannot_be_simulated(tmp_path: Path) -> None:
    data = make_dataset([[0], [1]], [-1, -1], [1, 0], 3)
    with pytest.raises(ConfigError, match="in memory only"):
        simulate(data, tmp_path / "run", rounds=1)
    assert not (tmp_path / "run").exists()


# --- protocol paper ------------------------------------------------------------------------------


def test_protocol_paper_takes_the_last_round_and_shows_the_best_by_test(tmp_path: Path) -> None:
    """U067: no validation; what the paper reports stands beside it, labelled as optimistic."""
    rows = [f"u{u},i{(u * 5 + k * k) % 23},{k}" for u in range(20) for k in range(8)]
    file = tmp_path / "rows.csv"
    file.write_text("user,item,time\n" + "\n".join(rows) + "\n")
    data = prepare(file, tmp_path / "data", protocol="paper")
    result = simulate(data, tmp_path / "run", **{**SETTINGS, "evaluate_every": 1})
    assert result.round == 6
    assert "last round" in result.values["round"]["by"]
    lines = [json.loads(line) for line in (result.path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 6
    curve = [line["test"]["sampled"]["hr@10"]["value"] for line in lines]
    best = result.values["best_by_test"]
    assert best["round"] == int(np.argmax(curve)) + 1
    assert best["test"]["sampled"]["hr@10"]["value"] == max(curve)
    assert "optimistic" in best["note"]
    assert result.metric("sampled.hr@10") == pytest.approx(curve[-1])
    assert_close(result.evaluate()["test"], result.values["test"], "test")
    assert len(result.recommend("u3", 5)) == 5


def test_the_default_protocol_has_no_best_by_test(run: Result) -> None:
    assert "best_by_test" not in run.values
