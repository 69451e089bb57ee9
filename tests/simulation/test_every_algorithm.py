"""A run's folder is enough for whatever is asked of it later, whichever algorithm made it."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrecgel import Result, simulate
from fedrecgel.cli import main
from fedrecgel.common.algorithms import view as view_module
from fedrecgel.common.algorithms.delta import LocalConfig
from fedrecgel.common.algorithms.registry import ALGORITHMS
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.simulation.personal import PersonalModel

SETTINGS: dict[str, Any] = {
    "preset": "paper",
    "embedding_dim": 4,
    "item_lr": 0.01,
    "dtype": "float64",
    "rounds": 6,
    "evaluate_every": 2,
    "fraction": 0.4,
    "clusters": 3,
    "log": "none",
}


CASES = (*ALGORITHMS, "fedncf:one-step")
"""Of FedNCF both ways of training: preset paper has the one, this preset the other."""


def settings_for(case: str, **more: Any) -> dict[str, Any]:
    name, _, preset = case.partition(":")
    more |= {"preset": preset} if preset else {}
    known = {*ALGORITHMS[name].config_class.__dataclass_fields__, "preset", "log", "nodes"}
    found = {key: value for key, value in {**SETTINGS, **more}.items() if key in known}
    return {"algorithm": name, **found}


@pytest.fixture(scope="module", params=CASES)
def run(
    request: pytest.FixtureRequest, small_data: Dataset, tmp_path_factory: pytest.TempPathFactory
) -> Result:
    folder = tmp_path_factory.mktemp("run") / "run"
    return simulate(small_data, folder, **settings_for(request.param, nodes=3))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_one_command_without_a_gpu_makes_its_folders_and_a_result(
    name: str, small_data: Dataset, tmp_path: Path
) -> None:
    """U084: nothing but the data and the algorithm's name is given."""
    out = tmp_path / "not" / "there" / "yet"
    words = ["--data", str(small_data.path), "--algorithm", name, "--out", str(out)]
    assert main(["simulate", *words, "--rounds", "1"]) == 0
    assert Result.open(out).values["test"]["sampled"]["hr@10"]["value"] >= 0


def test_the_model_measured_again_from_its_folder_is_the_one_of_the_run(run: Result) -> None:
    """Private and addressed tensors of the chosen round included."""
    again = Result.open(run.path).evaluate()
    for ranking in ("sampled", "full"):
        for name, cell in run.values["test"][ranking].items():
            if name in again["test"][ranking]:
                assert again["test"][ranking][name]["value"] == pytest.approx(cell["value"])


def test_state_is_read_in_groups_where_it_is_large(
    run: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = np.arange(24)
    whole = run.view(users).catalogue(torch.arange(24))
    monkeypatch.setattr(view_module, "GROUP_BYTES", 1)
    view = run.view(users)
    assert type(view) is view_module.GroupedView
    assert torch.allclose(view.catalogue(torch.arange(24)), whole, atol=1e-12)
    items = torch.arange(6).view(2, 3)
    found = view.candidates(torch.tensor([20, 3]), items)
    assert torch.allclose(found, whole[[20, 3]].gather(1, items), atol=1e-12)


def test_an_exported_model_scores_as_the_run_does(run: Result, tmp_path: Path) -> None:
    user = str(run.data.user_ids[7])
    best = run.recommend(user, k=5)
    assert len(best) == 5
    run.personal_model(user).save(tmp_path / "model")
    scores = PersonalModel.load(tmp_path / "model").score([entry.item for entry in best])
    assert scores == pytest.approx([entry.score for entry in best])


def test_fitted_and_new_users_are_served(run: Result) -> None:
    fitted = run.evaluate(fitted=True)["test"]["full"]["ndcg@10"]["value"]
    assert 0 <= fitted <= 1
    assert len(run.recommend_new(["i1", "i2", "i3"], k=5)) == 5


def test_the_result_says_with_what_users_were_scored_and_the_rate_of_item_rows(run: Result) -> None:
    config = run.algorithm.config
    assert run.values["scored_with"] == run.algorithm.scoring(config)
    assert run.values["scored_with"] in run.table()
    if isinstance(config, LocalConfig):
        assert run.values["item_rate"] == config.item_lr * config.batch_size
        assert f"{run.values['item_rate']:g} on the mean loss" in run.table()


def test_the_result_says_what_the_server_saw(run: Result) -> None:
    """U039."""
    saw = run.values["server_saw"]
    if run.algorithm.reduce == "per-user":
        assert saw.startswith("each user's own update: ")
        assert ("user" in saw.split(": ")[1]) == (run.values["algorithm"] == "perfedrec")
    else:
        assert saw == "sums over the users of each node; the smallest node has 8"
    assert f"the server saw {saw}" in run.table()


def test_a_run_goes_on_from_its_checkpoint_as_if_it_had_never_stopped(
    run: Result, small_data: Dataset, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    (copy / "result.json").unlink()
    shutil.rmtree(copy / "checkpoints" / "00000006")
    longer = simulate(small_data, copy, resume=True, log="none")
    expected, found = run.server.to_flat(), longer.server.to_flat()
    assert expected.keys() == found.keys()
    assert all(torch.equal(value, found[key]) for key, value in expected.items())
    assert longer.values["test"] == run.values["test"]


def test_what_the_server_keeps_for_single_users_is_for_its_owner_to_read(run: Result) -> None:
    path = run.path / "server.safetensors"
    assert path.exists() == (run.values["algorithm"] in ("cofedrec", "perfedrec"))
    assert not path.exists() or path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("run", ["perfedrec", "cofedrec", "gpfedrec"], indirect=True)
def test_bytes_are_those_of_the_user_and_not_of_the_node(run: Result) -> None:
    """A table has 30 rows of 4 numbers of 8 bytes, and a sent row an index of 8.

    Where nodes send sums they are measured in test_strategy.py.
    """
    name, table = run.values["algorithm"], 30 * 4 * 8
    assert run.algorithm.reduce == "per-user"
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    down = [line["bytes_down_per_user"] for line in lines]
    shared = 30 * 8 if name == "cofedrec" else table
    assert all(shared <= value <= shared + table for value in down)
    assert shared < down[-1]
    more = 4 * 8 if name == "perfedrec" else 0
    for line in lines:
        assert more < line["bytes_up_per_user"] <= 30 * (4 * 8 + 8) + more


def test_a_finished_run_needs_no_state_of_an_unfinished_round(run: Result, tmp_path: Path) -> None:
    """The checkpoints are not part of the result."""
    copy = Path(shutil.copytree(run.path, tmp_path / "copy"))
    shutil.rmtree(copy / "checkpoints")
    user = str(run.data.user_ids[0])
    assert Result.open(copy).recommend(user, k=3) == run.recommend(user, k=3)
