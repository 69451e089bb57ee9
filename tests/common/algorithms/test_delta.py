"""Algorithms that average the change of a table: rates that are free of the catalogue's size."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrecgel import prepare, simulate
from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.registry import ALGORITHMS, make_algorithm, make_config
from fedrecgel.common.errors import FederationError
from fedrecgel.common.hashing import user_keys
from fedrecgel.common.interactions import Interactions

NAMES = ("fedmf", "pfedrec", "fedrap")


@pytest.mark.parametrize("items", [60, 3000])
@pytest.mark.parametrize("name", NAMES)
def test_the_same_rates_do_on_any_catalogue(tmp_path: Path, name: str, items: int) -> None:
    """U081: 60 or 3,000 items, the same settings; nothing is multiplied by their number."""
    data = prepare("synthetic", tmp_path / "data", users=40, items=items, interactions=12)
    rates = {"item_lr": 0.05 if name == "fedrap" else 1.0, "init_std": 0.1}
    settings: dict[str, Any] = {"rounds": 6, "fraction": 1.0, "evaluate_every": 3, **rates}
    result = simulate(
        data, tmp_path / "run", algorithm=name, preset="paper", log="none", **settings
    )
    assert result.values["settings"]["item-lr"] == rates["item_lr"]
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    losses = [json.loads(line)["loss"] for line in lines]
    assert 0 < losses[-1] < losses[0] < 2


@pytest.mark.parametrize("name", NAMES)
def test_a_rate_that_is_too_high_is_named(name: str) -> None:
    """U081: the error says the rate as given, and what it is on the mean loss."""
    algorithm: Any = make_algorithm(make_config(name, {"item_lr": 50, "batch_size": 100}), 5)
    data = Interactions(np.array([0, 1]), np.array([0, 2]), user_keys(["a"]), 5)
    server, private = algorithm.init_server(), algorithm.init_private(data.keys)
    server.shared[algorithm.table].fill_(torch.inf)
    message = r"diverged.* item-lr 50 \(a rate of 5000 on the mean loss\); lower one of them"
    with pytest.raises(FederationError, match=message):
        algorithm.block_update(Download(server.shared), private, data, 1)


@pytest.mark.parametrize(("name", "more"), [("fedmf", {}), ("fedncf", {"sends": "change"})])
def test_rows_that_nobody_touched_stay_as_they_are(name: str, more: dict[str, str]) -> None:
    """Averaged over those who touched them, none; `upload=dense` has them as zeros."""
    settings = {"row_average": True, "num_negatives": 0, "embedding_dim": 2, **more}
    algorithm: Any = make_algorithm(make_config(name, settings), 4)
    data = Interactions(np.array([0, 2, 2]), np.array([0, 2, 3]), user_keys(["a", "b"]), 4)
    server, private = algorithm.init_server(), algorithm.init_private(data.keys)
    before = server.shared["items"].clone()
    update, _ = algorithm.block_update(Download(server.shared), private, data, 1)
    algorithm.aggregate(server, {-1: update.dense_rows(4)}, 1)
    moved = (server.shared["items"] != before).any(1)
    assert moved.tolist() == [True, False, True, False]
    assert server.shared["touched"].flatten().tolist() == [1, 0, 2, 0]
    change = update.rows["items"][1] / torch.tensor([[1.0], [2.0]])
    torch.testing.assert_close((server.shared["items"] - before)[[0, 2]], change)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_may_be_searched_are_settings_that_the_algorithm_has(name: str) -> None:
    """U082: every value on its own makes a valid config, and the paper is named."""
    algorithm = ALGORITHMS[name]
    assert algorithm.search
    assert "20" in algorithm.citation
    for setting, values in algorithm.search.items():
        assert len(values) > 1
        for value in values:
            assert make_config(name, {setting: value}) is not None
