from dataclasses import replace

import numpy as np
import pytest
import torch

from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.common.evaluation import held_out, rank_among_candidates, rank_in_catalogue
from fedrecgel.common.metrics import hit_ratio
from fedrecgel.simulation.central.factors import EPOCHS_MF, EPOCHS_NEUMF
from fedrecgel.simulation.central.local import LocalView
from fedrecgel.simulation.central.methods import METHODS
from fedrecgel.simulation.central.training import Training


def hits(data, view, k=5):
    held = held_out(data, "test")
    return hit_ratio(rank_in_catalogue(view, held.positives, held.excluded), k).mean()


@pytest.mark.parametrize(("name", "epochs"), [("mf", max(EPOCHS_MF)), ("neumf", max(EPOCHS_NEUMF))])
def test_a_central_model_of_vectors_finds_the_taste_of_a_user(two_tastes, name, epochs):
    data, method = two_tastes(80), METHODS[name]
    view = method.fit(Training(data), {**method.grid[0], "epochs": epochs}, "test")
    assert hits(data, view) > 0.8  # 5 of 17 items are of the right taste: chance is 0.29
    held = held_out(data, "test")
    full = rank_in_catalogue(view, held.positives, held.excluded)
    sampled = rank_among_candidates(view, held.positives, held.candidates)
    assert np.all(sampled.greater <= full.greater)


@pytest.mark.parametrize("name", ["mf", "neumf", "local-only"])
def test_nothing_is_learned_from_held_out_items(two_tastes, name):  # U062, U063
    data = two_tastes(20)
    other = replace(data, validation_items=data.test_items, test_items=data.validation_items)
    method = METHODS[name]
    views = [method.fit(Training(each), method.grid[0], "test") for each in (data, other)]
    scores = [view.catalogue(torch.arange(20)).numpy() for view in views]
    np.testing.assert_array_equal(*scores)


def test_one_training_serves_every_number_of_epochs(two_tastes):
    training, method = Training(two_tastes(20)), METHODS["mf"]
    for params in method.grid:
        method.fit(training, params, "test")
    assert len(training.trained) == len({params["l2"] for params in method.grid})


def test_alone_a_user_finds_unseen_items_by_chance_but_all_of_them_where_negatives_leak():  # U063
    rng = np.random.default_rng(1)
    rows = [rng.permutation(60)[:12].tolist() for _ in range(150)]
    data = make_dataset(
        [row[:10] for row in rows], [row[10] for row in rows], [row[11] for row in rows], 60
    )
    fit, training = METHODS["local-only"].fit, Training(data)
    chance = 10 / 49  # of 60 items ten are in train, one in validation
    assert hits(data, fit(training, {}, "test"), 10) == pytest.approx(chance, abs=0.1)
    assert hits(data, fit(training, {"leaky": 1}, "test"), 10) > 0.95


def test_a_local_model_has_own_rows_over_the_common_table():
    users, items = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.0], [3.0], [5.0]])
    view = LocalView(users, items, np.array([1, 3]), torch.tensor([9.0, 7.0]))
    found = view.catalogue(torch.tensor([1, 0])).tolist()
    assert found == [[7.0, 6.0, 10.0], [1.0, 9.0, 5.0]]
    chosen = view.candidates(torch.tensor([0]), torch.tensor([[1, 2]]))
    assert chosen.tolist() == [[9.0, 5.0]]
