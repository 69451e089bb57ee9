"""What users of recommenders trip over when they measure, each case by its number."""

import json

import numpy as np
import pytest
import torch

from fedrecgel.cli import main
from fedrecgel.common.data import prepare
from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.common.evaluation import excluded_items, held_out, rank_in_catalogue
from fedrecgel.common.metrics import hit_ratio
from fedrecgel.simulation.report import build_report
from fedrecgel.simulation.run import simulate
from fedrecgel.simulation.table import table as text_of


class TableView:
    def __init__(self, table):
        self.table = torch.as_tensor(np.asarray(table, dtype=np.float32))
        self.num_users, self.num_items = self.table.shape

    def candidates(self, users, items):
        return self.table[users[:, None], items]

    def catalogue(self, users):
        return self.table[users]


def made(users=30, items=150):
    rng = np.random.default_rng(0)
    rows = [rng.choice(items, 12, replace=False) for _ in range(users)]
    return make_dataset(
        [row[:10].tolist() for row in rows],
        validation=[int(row[10]) for row in rows],
        test=[int(row[11]) for row in rows],
        num_items=items,
    )


def report_of(data, table, trained=None):
    return build_report(
        data,
        TableView(table),
        trained_users=np.ones(data.num_users, dtype=bool) if trained is None else trained,
        trained_items=np.ones(data.num_items, dtype=bool),
    )


def test_u061_sampled_rivals_are_distinct_and_their_number_is_stated():
    data = made()
    for split in ("validation", "test"):
        for row in held_out(data, split).candidates:
            assert len(set(row.tolist())) == 99
    report = report_of(data, np.zeros((30, 150)))
    assert report["candidates"] == {"fewest": 99, "most": 99}
    few = made(items=60)  # 48 items are left that a user does not know
    assert report_of(few, np.zeros((30, 60)))["candidates"] == {"fewest": 48, "most": 48}


def test_u062_no_positive_stands_among_the_rivals():
    data = made()
    for split in ("validation", "test"):
        for user, row in enumerate(held_out(data, split).candidates):
            known = {*data.train_of(user).tolist(), int(data.validation_items[user])}
            assert not set(row.tolist()) & (known | {int(data.test_items[user])})


def test_u064_both_rankings_are_labelled_and_uncertain():
    report = report_of(made(), np.random.default_rng(1).random((30, 150)))
    assert report["test"]["sampled"]["hr@10"] != report["test"]["full"]["hr@10"]
    for ranking in ("sampled", "full"):
        cell, ends = report["test"][ranking]["hr@20"], report["intervals"][ranking]["hr@20"]
        assert ends["low"] <= cell["value"] <= ends["high"]
    assert "not with the full ranking" in report["definitions"]["sampled"]
    assert any(name.startswith("sampled") for name in report["comparable"])


def test_u066_training_items_are_masked_in_the_full_ranking():
    data = made()
    table = np.zeros((30, 150))
    for user in range(30):
        table[user, data.train_of(user)] = 9  # a model that has learned its users by heart
        table[user, data.test_items[user]] = 5
    counts = rank_in_catalogue(TableView(table), data.test_items, excluded_items(data, "test"))
    assert hit_ratio(counts, 1).mean() == 1


def test_u067_the_best_of_many_test_evaluations_beats_chance_without_a_model():
    data = made(users=200)
    held = held_out(data, "test")
    rng = np.random.default_rng(2)
    found = [
        hit_ratio(
            rank_in_catalogue(TableView(rng.random((200, 150))), held.positives, held.excluded), 10
        ).mean()
        for _ in range(100)
    ]
    chance = 10 / (150 - 11)
    assert np.mean(found) == pytest.approx(chance, abs=0.01)
    assert max(found) > 1.4 * chance  # why the round is chosen on validation, and tested once


def test_u069_the_number_of_users_stands_beside_every_metric():
    data = made()
    report = report_of(data, np.random.default_rng(3).random((30, 150)))
    assert (report["users"]["evaluated"], report["users"]["eligible"]) == (30, 30)
    for kind in ("item_popularity", "user_activity"):
        assert sum(part["evaluated"] for part in report["groups"][kind].values()) == 30


def test_u070_which_model_is_measured_is_stated_counted_and_chosen(on_disk, tmp_path, capsys):
    data = on_disk(made(users=60))
    result = simulate(data, tmp_path / "run", fraction=0.1, rounds=3, private_steps=1, log="none")
    never = result.values["users"]["never_trained"]
    assert never >= 60 - 3 * 6
    assert result.values["users"]["trained_only"]["evaluated"] == 60 - never
    assert any("were never trained" in line for line in result.values["warnings"])
    kept, fitted = result.evaluate(), result.evaluate(fitted=True)
    assert kept["test"]["full"] != fitted["test"]["full"]
    assert main(["evaluate", "--run", str(result.path), "--private", "fitted"]) == 0
    rounds = "1 more local round against"  # the preset's Newton needs no second one
    assert f"model: private parameters after {rounds}" in capsys.readouterr().out


def test_u072_perfect_zero_and_collapsed_scores_are_pointed_at():
    data = made()
    perfect = np.zeros((30, 150))
    perfect[np.arange(30), data.test_items] = 1
    cases = {
        "does the model see the held-out items": perfect,
        "is exactly 0": -perfect,
        "no different from chance": np.zeros((30, 150)),
    }
    for words, table in cases.items():
        assert any(words in line for line in report_of(data, table)["warnings"]), words


def test_u072_a_list_that_holds_every_rival_is_no_reason_to_warn():
    data = made()
    report = build_report(
        data,
        TableView(np.random.default_rng(4).random((30, 150))),
        trained_users=np.ones(30, dtype=bool),
        trained_items=np.ones(150, dtype=bool),
        names=["hr@100", "recall@100"],
    )
    assert not any(line.startswith("sampled") for line in report["warnings"])
    assert report["test"]["sampled"]["recall@100"]["value"] == 1


def test_u073_no_padding_row_is_counted_as_an_item():
    data = made()
    report = report_of(data, np.zeros((30, 150)))
    assert (report["items"]["all"], report["users"]["all"]) == (150, 30)
    groups = report["groups"]["item_popularity"]
    assert sum(part["items"] for part in groups.values()) == 150
    # 150 items less ten train and one validation item: 138 rivals.
    assert report["chance"]["full"]["hr@10"]["value"] == pytest.approx(10 / 139)


@pytest.mark.realdata
def test_u073_counts_are_those_of_the_publication(shared_data, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECGEL_DATA", str(shared_data))
    data = prepare("ml-100k", tmp_path / "data")
    assert (data.num_users, data.num_items) == (943, 1682)
    assert data.num_train + 2 * 943 == 100_000
    assert data.manifest.statistics["raw"]["interactions"] == 100_000


def test_any_metric_at_any_k_is_measured_again(on_disk, tmp_path, capsys):
    data = on_disk(made())
    result = simulate(data, tmp_path / "run", rounds=2, log="none")
    command = ["evaluate", "--run", str(result.path), "--k", "1,50", "--metrics", "map,precision"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["test"]["full"]
    assert list(found) == ["map@1", "precision@1", "map@50", "precision@50"]
    assert main(command) == 0
    assert "precision@50" in capsys.readouterr().out
    assert main([*command[:3], "--metrics", "auc"]) == 2


def test_references_stand_beside_a_run(on_disk, tmp_path):
    data = on_disk(made())
    result = simulate(data, tmp_path / "run", rounds=2, log="none", references=["ease"])
    entry = result.values["references"]["methods"]["ease"]
    model = result.values["test"]["full"]["ndcg@10"]["value"]
    theirs = entry["test"]["full"]["ndcg@10"]["value"]
    assert entry["difference"]["full"]["ndcg@10"]["value"] == pytest.approx(model - theirs)
    assert "model minus ease, full ndcg@10" in result.table()


def test_users_with_several_held_out_items_are_measured_over_all(on_disk, tmp_path):
    rng = np.random.default_rng(5)
    rows = [rng.choice(60, 12, replace=False).tolist() for _ in range(30)]
    data = on_disk(
        make_dataset(
            [row[:6] for row in rows],
            validation=[row[6:8] for row in rows],
            test=[row[8:] for row in rows],
            num_items=60,
        )
    )
    result = simulate(data, tmp_path / "run", rounds=2, log="none")
    several = result.values["several"]
    assert (several["evaluated"], several["mean_positives"]) == (30, 4)
    assert several["model"]["full"].keys() >= {"recall@10", "precision@10", "map@10", "ndcg@10"}
    assert "ALL HELD-OUT ITEMS of 30 users, 4.0 each" in result.table()
    again = result.evaluate()["several"]
    assert again["model"]["full"]["map@10"]["value"] == pytest.approx(
        several["model"]["full"]["map@10"]["value"]
    )
    asked = ("recall@3", "map@40")
    other = result.evaluate(names=asked)
    assert tuple(other["several"]["popularity"]["full"]) == asked
    assert "full recall@3 " in text_of(other, asked)
    assert "recall@10" not in text_of(other, asked)
