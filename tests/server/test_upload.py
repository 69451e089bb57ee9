"""Setting ``upload``: rows that were touched, or all rows, which compute the same."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message

from fedrecgel.common.algorithms.registry import ALGORITHMS
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.state import Update
from fedrecgel.simulation.grid import InProcessGrid

pytestmark = pytest.mark.flower

SETTINGS: dict[str, Any] = {
    "rounds": 2,
    "fraction": 0.5,
    "scorer": "dot",
    "embedding_dim": 4,
    "dtype": "float64",
    "evaluate_every": 1,
}


class Sizes(InProcessGrid):
    """Notes rows and bytes of every training reply."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows: list[set[int]] = []
        self.bytes: list[int] = []

    def _answer(self, message: Message) -> Message:
        reply = super()._answer(message)
        if message.metadata.message_type == "train":
            arrays = reply.content["update"]
            self.rows.append({len(a.numpy()) for n, a in arrays.items() if n.endswith("/index")})
            self.bytes.append(sum(len(array.data) for array in arrays.values()))
            self.touched = reply.content["metrics"]["touched"]
        return reply


@pytest.mark.parametrize("name", [*ALGORITHMS, "fedncf:change"])
def test_all_rows_compute_what_the_touched_rows_do(
    federation: Callable[..., Any], small_data: Dataset, name: str
) -> None:
    name, _, sends = name.partition(":")
    known = {field.name for field in fields(ALGORITHMS[name].config_class)}
    settings = {key: value for key, value in SETTINGS.items() if key in known}
    settings |= {"sends": sends} if sends else {}
    runs = [
        federation(small_data, name, nodes=3, upload=upload, **settings)
        for upload in ("rows", "dense")
    ]
    sparse, dense = (run.run().outcome for run in runs)
    for key, value in sparse.best.shared.items():
        torch.testing.assert_close(dense.best.shared[key], value, rtol=0, atol=1e-12)
    for ranking, sums in sparse.test.items():
        np.testing.assert_allclose(dense.test[ranking].totals, sums.totals, atol=1e-9)
    assert (dense.best.trained_items <= sparse.best.trained_items).all()


def test_the_size_of_a_dense_reply_is_the_same_for_every_user(
    federation: Callable[..., Any], small_data: Dataset
) -> None:
    """24 nodes of one user with 3 to 9 interactions each."""
    sizes = {}
    for upload in ("rows", "dense"):
        run = federation(small_data, nodes=24, upload=upload, **{**SETTINGS, "fraction": 1.0})
        sizes[upload] = grid = run.grid(Sizes)
        run.run(grid)
    assert len(set(sizes["rows"].bytes)) > 3
    assert len(set(sizes["dense"].bytes)) == 1
    assert all(rows == {small_data.num_items} for rows in sizes["dense"].rows)
    assert sizes["dense"].touched == [small_data.num_items]


def test_rows_are_written_out_with_zeros_between() -> None:
    rows = {"items": (torch.tensor([1, 3]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))}
    found = Update(rows, {"w": torch.ones(2)}, users=2, loss=0.5, touched=3).dense_rows(5)
    index, values = found.rows["items"]
    assert index.tolist() == [0, 1, 2, 3, 4]
    assert values.tolist() == [[0, 0], [1, 2], [0, 0], [3, 4], [0, 0]]
    assert (found.users, found.loss, found.touched) == (2, 0.5, 10)
    assert found.dense["w"].tolist() == [1, 1]
