import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from fedrecgel.cli import main
from fedrecgel.common.data.dataset import Dataset, make_dataset
from fedrecgel.common.errors import ConfigError, DataError
from fedrecgel.common.evaluation import held_out, rank_among_candidates, rank_in_catalogue
from fedrecgel.common.metrics import RankCounts, hit_ratio, metric
from fedrecgel.simulation.central import methods, training
from fedrecgel.simulation.central.comparison import reference_report
from fedrecgel.simulation.central.methods import METHODS, als, ease, item_knn, recent
from fedrecgel.simulation.central.text import reference_table
from fedrecgel.simulation.central.training import Training
from fedrecgel.simulation.central.tuned import CACHE, references
from fedrecgel.simulation.central.views import RecentView


def matrix(data):
    x = np.zeros((data.num_users, data.num_items))
    for user in range(data.num_users):
        x[user, data.train_of(user)] = 1
    return x


def scores(view):
    return view.catalogue(torch.arange(view.num_users)).numpy()


@pytest.fixture
def kept(two_tastes, on_disk):
    return on_disk(two_tastes())


# --- what they compute


def together(data):
    return torch.cat([counts for _, counts in Training(data).together()]).tolist()


def test_items_together_are_counted_once_per_user(two_tastes, monkeypatch):
    monkeypatch.setattr(training, "BUDGET", 4 * 40 * 7)  # several blocks of items
    data = two_tastes()
    x = matrix(data)
    assert together(data) == (x.T @ x).tolist()
    repeated = make_dataset([[1, 1, 0]], [-1], [2], num_items=3)
    assert together(repeated) == [[1, 1, 0], [1, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize("users", [10, 40])  # fewer and more than the 24 items
def test_ease_equals_its_closed_form(two_tastes, users):
    data = two_tastes(users)
    x = matrix(data)
    p = np.linalg.inv(x.T @ x + 30 * np.eye(data.num_items))
    b = -p / np.diag(p)
    np.fill_diagonal(b, 0)
    np.testing.assert_allclose(scores(ease(Training(data), {"l2": 30}, "test")), x @ b, atol=1e-5)


def test_item_neighbours_equal_a_plain_loop(two_tastes):
    data = two_tastes()
    x = matrix(data)
    together, counts = x.T @ x, x.sum(axis=0)
    weights = np.zeros_like(together)
    for i in range(data.num_items):
        row = together[i] / (np.sqrt(counts[i] * counts) + 10)
        row[i] = 0
        best = np.argsort(-row, kind="stable")[:23]
        weights[i, best] = row[best]
    found = item_knn(Training(data), {"neighbours": 23, "shrink": 10}, "test")
    np.testing.assert_allclose(scores(found), x @ weights, atol=1e-5)


def test_an_item_keeps_only_its_nearest_neighbours():
    data = make_dataset([[0, 1], [0, 1], [0, 2]], [-1] * 3, [3] * 3, num_items=4)
    found = scores(item_knn(Training(data), {"neighbours": 1, "shrink": 0}, "test"))
    assert found[0, 2] == 0  # of item 0 the nearest is 1, of item 1 it is 0
    assert found[2, 1] == pytest.approx(2 / np.sqrt(3 * 2))


@pytest.mark.parametrize(
    ("fit", "params"),
    [
        (ease, {"l2": 10}),
        (item_knn, {"neighbours": 10, "shrink": 0}),
        (als, {"factors": 4, "regularization": 0.1, "alpha": 5}),
    ],
)
def test_a_central_method_finds_the_taste_of_a_user(two_tastes, fit, params):
    if fit is als:
        pytest.importorskip("implicit")
    data = two_tastes()
    view = fit(Training(data), params, "test")
    held = held_out(data, "test")
    ranks = rank_in_catalogue(view, held.positives, held.excluded)
    assert hit_ratio(ranks, 5).mean() > 0.8  # 5 of 17 items are of the right taste: chance is 0.29
    sampled = rank_among_candidates(view, held.positives, held.candidates)
    assert np.all(sampled.greater <= ranks.greater)


@pytest.mark.parametrize("name", ["item-knn", "ease", "als"])
def test_nothing_is_learned_from_held_out_items(two_tastes, name):  # U062, U063
    if name == "als":
        pytest.importorskip("implicit")
    data = two_tastes()
    other = replace(data, validation_items=data.test_items, test_items=data.validation_items)
    method = METHODS[name]
    views = [method.fit(Training(d), method.grid[0], "test") for d in (data, other)]
    np.testing.assert_array_equal(scores(views[0]), scores(views[1]))


def test_recent_popularity_counts_a_window_before_each_user():
    rng = np.random.default_rng(3)
    items = rng.integers(0, 6, 50)
    first = rng.integers(0, 50, 20)
    last = np.minimum(first + rng.integers(0, 30, 20), 50)
    view = RecentView(items, first, last, 6)
    for order in (np.arange(20), rng.permutation(20)):
        found = view.catalogue(torch.from_numpy(order)).numpy()
        slow = [np.bincount(items[first[u] : last[u]], minlength=6) for u in order]
        np.testing.assert_array_equal(found, slow)


def test_recent_popularity_never_looks_past_the_held_out_event(on_disk):  # U068
    data = on_disk(make_dataset([[0], [1], [2]], [-1] * 3, [3, 3, 3], num_items=4))
    pd.DataFrame(
        {
            "user": [0, 0, 1, 1, 2, 2],
            "item": [0, 3, 1, 3, 2, 3],
            "part": ["train", "test"] * 3,
            "time": [0, 5, 10, 15, 100, 12],
        }
    ).to_parquet(data.path / "interactions.parquet")
    whole = scores(recent(Training(data), {"window": 1.0}, "test"))
    assert whole.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]
    brief = scores(recent(Training(data), {"window": 0.06}, "test"))
    assert brief.tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [0, 1, 0, 0]]


# --- tuned, kept, reported


def test_the_grid_is_tuned_on_validation_and_measured_on_test(kept):  # U067
    (found,), left_out = references(kept, ["ease"])
    assert left_out == {}
    assert len(found.trials) == len(METHODS["ease"].grid)
    best = max(trial["value"] for trial in found.trials)
    assert next(t for t in found.trials if t["params"] == found.params)["value"] == best
    held = held_out(kept, "test")
    view = ease(Training(kept), found.params, "test")
    again = rank_in_catalogue(view, held.positives, held.excluded)
    np.testing.assert_array_equal(again.greater, found.ranks["full"].greater)


def test_a_second_call_reads_what_the_first_found(kept, monkeypatch):
    (first,), _ = references(kept, ["item-knn"])
    monkeypatch.setattr(methods, "item_knn", None)
    (second,), _ = references(Dataset.load(kept.path), ["item-knn"])
    assert (first.cached, second.cached) == (False, True)
    assert (second.params, second.trials) == (first.params, first.trials)
    for ranking in ("sampled", "full"):
        np.testing.assert_array_equal(
            metric("ndcg@10", first.ranks[ranking]), metric("ndcg@10", second.ranks[ranking])
        )
    np.testing.assert_array_equal(first.lists, second.lists)
    assert (kept.path / CACHE).stat().st_mode & 0o077 == 0
    assert not references(kept, ["item-knn"], fresh=True)[0][0].cached


def test_another_data_set_or_grid_or_a_damaged_file_is_computed_again(kept, monkeypatch):
    references(kept, ["ease"])
    (file,) = (kept.path / CACHE).iterdir()
    file.write_bytes(b"damaged")
    assert not references(kept, ["ease"])[0][0].cached
    assert references(kept, ["ease"])[0][0].cached
    other = replace(kept, manifest=replace(kept.manifest, hash="0" * 64))
    assert not references(other, ["ease"])[0][0].cached
    changed = dict(METHODS, ease=replace(METHODS["ease"], grid=({"l2": 5},)))
    monkeypatch.setattr("fedrecgel.simulation.central.tuned.METHODS", changed)
    assert not references(kept, ["ease"])[0][0].cached


def test_without_validation_the_first_of_the_grid_is_taken_and_said(two_tastes, on_disk):
    data = two_tastes()
    data = on_disk(replace(data, validation_items=np.full_like(data.validation_items, -1)))
    report = reference_report(data, ["ease"])
    assert report["methods"]["ease"]["params"] == METHODS["ease"].grid[0]
    assert "untuned: no validation" in reference_table(report)


def test_what_cannot_be_had_is_left_out_and_said(kept, monkeypatch):
    monkeypatch.setattr("fedrecgel.simulation.central.ease.MAX_CELLS", 10)
    found, left_out = references(kept, None)
    assert {one.name for one in found} <= {"popularity", "item-knn", "als"}
    assert "ease needs a table of 24 items x 24" in left_out["ease"]
    assert "no interactions.parquet" in left_out["recent"]
    with pytest.raises(DataError, match="name other methods"):
        references(kept, ["ease"])
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(DataError, match=r"pip install 'fedrecgel\[references\]'"):
        references(kept, ["als"], fresh=True)


def test_an_unknown_method_names_the_known_ones(kept):
    with pytest.raises(ConfigError, match="unknown reference 'bpr'; choose from popularity"):
        references(kept, ["bpr"])


def test_a_model_is_paired_with_a_reference_on_its_own_users(kept):
    some = np.arange(3, 33)
    model = RankCounts(np.zeros(30), np.zeros(30), some)
    entry = reference_report(kept, ["ease"], {"full": model})["methods"]["ease"]
    (found,), _ = references(kept, ["ease"])
    theirs = hit_ratio(found.ranks["full"], 5)[some]
    assert entry["difference"]["full"]["hr@5"]["value"] == pytest.approx(1 - theirs.mean())
    assert entry["evaluated"] == 40


def test_nothing_about_single_users_in_the_report(kept):  # U094
    text = json.dumps(reference_report(kept, ["popularity", "ease"]))
    assert not any(f'"{name}"' in text for name in [*kept.user_ids, *kept.item_ids])


def test_the_command_prints_a_table_or_json(kept, capsys):
    command = ["references", "--data", str(kept.path), "--methods", "popularity,ease"]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "sampled hr@10" in text
    assert "ease: l2" in text
    assert max(map(len, text.splitlines())) <= 100
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert list(report["methods"]) == ["popularity", "ease"]
    assert main(["references", "--data", str(kept.path), "--methods", "best"]) == 2
    assert "error: unknown reference 'best'" in capsys.readouterr().err


@pytest.mark.realdata
def test_ease_on_ml_100k_is_at_its_known_level(shared_data, tmp_path, monkeypatch):
    from fedrecgel.common.data import prepare

    monkeypatch.setenv("FEDRECGEL_DATA", str(shared_data))
    data = prepare("ml-100k", tmp_path / "data")
    held = held_out(data, "test")
    view = ease(Training(data), {"l2": 100}, "test")
    sampled = rank_among_candidates(view, held.positives, held.candidates)
    full = rank_in_catalogue(view, held.positives, held.excluded)
    # An independent implementation found 64.4 / 37.8 and 14.6 / 7.7 on another draw of the split.
    assert metric("hr@10", sampled).mean() == pytest.approx(0.644, abs=0.02)
    assert metric("ndcg@10", sampled).mean() == pytest.approx(0.378, abs=0.02)
    assert metric("hr@10", full).mean() == pytest.approx(0.146, abs=0.015)
    assert metric("ndcg@10", full).mean() == pytest.approx(0.077, abs=0.01)
