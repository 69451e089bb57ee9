import json
import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrecgel.common.data import prepare
from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.common.evaluation import held_out, rank_among_candidates, rank_in_catalogue
from fedrecgel.common.json_file import write_json
from fedrecgel.common.metrics import NAMES, hit_ratio, metric_names
from fedrecgel.simulation.plots import curves
from fedrecgel.simulation.references import (
    PopularityView,
    chance_counts,
    popularity_counts,
    popularity_report,
)
from fedrecgel.simulation.report import (
    assemble,
    best_by_test,
    build_report,
    mean_overlap,
    overlap_between_users,
    table,
    versions,
)

PNG = b"\x89PNG\r\n\x1a\n"


class TableView:
    def __init__(self, scores):
        self.table = torch.as_tensor(np.asarray(scores, dtype=np.float64))
        self.num_users, self.num_items = self.table.shape

    def candidates(self, users, items):
        return self.table[users[:, None], items]

    def catalogue(self, users):
        return self.table[users]


def dataset(users=40, items=60, seed=0):
    """Users of two tastes: even users like even items; item 0 and 1 are everybody's."""
    rng = np.random.default_rng(seed)
    rows = [
        2 * rng.choice(np.arange(1, items // 2), 6, replace=False) + u % 2 for u in range(users)
    ]
    train = [[u % 2, *row[:4].tolist()] for u, row in enumerate(rows)]
    return make_dataset(
        train,
        validation=[int(r[4]) for r in rows],
        test=[int(r[5]) for r in rows],
        num_items=items,
        user_ids=[f"person-{u}" for u in range(users)],
    )


def good_view(data):
    """Knows everybody's taste, and nothing else: items of the right parity first, noise within."""
    noise = np.random.default_rng(1).random((data.num_users, data.num_items))
    parity = np.arange(data.num_users)[:, None] % 2 == np.arange(data.num_items)[None, :] % 2
    return TableView(parity + noise)


def everything(data):
    return {
        "trained_users": np.ones(data.num_users, dtype=bool),
        "trained_items": np.ones(data.num_items, dtype=bool),
    }


def row(number, ndcg, split="validation", **more):
    cell = {"value": ndcg, "se": 0.01}
    cells = {name: cell for name in NAMES}
    return {"round": number, "loss": 1 / number, split: {"sampled": cells, "full": cells}, **more}


# --- references


def test_popularity_counts_train_interactions_only():
    data = make_dataset([[0, 1], [1], [1, 2]], validation=[2, 2, 0], test=[3, 3, 3], num_items=5)
    view = PopularityView.of(data)
    assert view.catalogue(torch.tensor([0, 2])).tolist() == [[1, 3, 1, 0, 0]] * 2
    assert view.candidates(torch.tensor([1]), torch.tensor([[1, 4]])).tolist() == [[3, 0]]


def test_equally_popular_items_are_ties():
    data = make_dataset([[0], [0], [1]], validation=[-1] * 3, test=[2, 3, 0], num_items=5)
    full = popularity_counts(data, held_out(data, "test"))["full"]
    # Users 0 and 1: item 1 is above, the other three without interactions are equal, 0 is known.
    assert full.greater.tolist() == [1, 1, 0]
    assert full.ties.tolist() == [2, 2, 0]


def test_chance_is_what_a_constant_scorer_gets():
    data = make_dataset(
        [[0, 1, 1], [2], [3, 4]], validation=[2, -1, 1], test=[1, 0, -1], num_items=8
    )
    for split in ("validation", "test"):
        held = held_out(data, split)
        chance = chance_counts(held, data.num_items)
        constant = PopularityView(np.zeros(data.num_items), data.num_users)
        sampled = rank_among_candidates(constant, held.positives, held.candidates)
        full = rank_in_catalogue(constant, held.positives, held.excluded)
        for ours, theirs in ((chance["sampled"], sampled), (chance["full"], full)):
            assert ours.users.tolist() == theirs.users.tolist()
            assert ours.greater.tolist() == theirs.greater.tolist()
            assert ours.ties.tolist() == theirs.ties.tolist()


@pytest.mark.realdata
def test_popularity_on_filmtrust_is_at_its_known_level(shared_data, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDRECGEL_DATA", str(shared_data))
    report = popularity_report(prepare("filmtrust", tmp_path / "data", protocol="paper"), "test")
    # Times are invented and candidates drawn: over seeds 90.7 to 92.3, and 80.8 to 83.1.
    assert report["sampled"]["hr@10"]["value"] == pytest.approx(0.915, abs=0.012)
    assert report["sampled"]["ndcg@10"]["value"] == pytest.approx(0.82, abs=0.018)
    assert report["full"]["hr@10"]["value"] == pytest.approx(0.69, abs=0.03)


# --- overlap


@given(st.lists(st.lists(st.integers(0, 6), max_size=4, unique=True), min_size=2, max_size=6))
def test_overlap_between_users_is_the_mean_over_pairs(rows):
    lists = np.array([r + [-1] * (4 - len(r)) for r in rows])
    pairs = [len(set(a) & set(b)) for a, b in combinations(rows, 2)]
    assert overlap_between_users(lists, 7) == pytest.approx(sum(pairs) / len(pairs))


def test_overlap_of_rows_leaves_padding_out():
    a, b = np.array([[1, 2, -1], [3, -1, -1]]), np.array([[2, 1, -1], [4, -1, -1]])
    assert mean_overlap(a, b) == 1.0  # two shared, none shared


def test_overlap_of_too_few_lists_is_undefined():
    assert overlap_between_users(np.array([[1, 2]]), 3) is None
    assert mean_overlap(np.empty((0, 2), dtype=int), np.empty((0, 2), dtype=int)) is None


def test_a_model_that_learned_popularity_shows_as_such():
    data = dataset()
    report = build_report(data, PopularityView.of(data), **everything(data))
    assert report["overlap"]["with_popularity_list"] == 10
    assert report["test"] == report["popularity"]
    assert report["difference"]["full"]["hr@10"]["changed"] == 0


# --- report


def test_result_holds_both_rankings_beside_popularity_and_chance():  # U012, U064
    data = dataset()
    report = build_report(data, good_view(data), **everything(data))
    for part in ("test", "popularity", "chance"):
        for ranking in ("sampled", "full"):
            kinds = ("hr", "ndcg", "mrr")
            assert list(report[part][ranking]) == list(metric_names((5, 10, 15, 20), kinds))
            assert set(report[part][ranking]["hr@10"]) == {"value", "se"}
    held = held_out(data, "test")
    expected = rank_in_catalogue(good_view(data), held.positives, held.excluded)
    assert report["test"]["full"]["hr@10"]["value"] == hit_ratio(expected, 10).mean()
    for ranking, cells in popularity_report(data, "test").items():
        assert {name: report["popularity"][ranking][name] for name in cells} == cells
    assert report["validation_popularity"] == popularity_report(data, "validation")
    assert report["chance"]["full"]["hr@10"]["value"] == pytest.approx(10 / (60 - 6))
    assert report["difference"]["full"]["hr@10"]["value"] == pytest.approx(
        report["test"]["full"]["hr@10"]["value"] - report["popularity"]["full"]["hr@10"]["value"]
    )


def test_users_and_items_are_counted():  # U054, U069, U070
    data = make_dataset(
        [[0, 1], [0, 2], [1, 2], [0, 1]],
        validation=[2, 1, 0, 2],
        test=[3, 3, 4, -1],
        num_items=6,
    )
    view = TableView([[0, 0, 0, 9, 1, 2]] * 4)
    report = build_report(
        data,
        view,
        trained_users=np.array([True, False, True, True]),
        trained_items=np.array([True, True, True, True, False, False]),
    )
    users, items = report["users"], report["items"]
    assert (users["all"], users["eligible"], users["evaluated"]) == (4, 3, 3)
    assert users["never_trained"] == 1
    assert users["trained_only"]["evaluated"] == 2
    assert (items["all"], items["never_trained"]) == (6, 2)
    assert items["positives_never_trained"] == 1
    assert items["positives_never_trained_share"] == pytest.approx(1 / 3)
    # The positive of users 0 and 1 is first; user 2's item 4 is third of 3, 5 and 4.
    with_them = report["test"]["full"]["ndcg@10"]["value"]
    without = items["trained_positives_only"]["full"]["ndcg@10"]["value"]
    assert with_them == pytest.approx((1 + 1 + 0.5) / 3)
    assert without == 1
    assert report["candidates"] == {"fewest": 2, "most": 2}


def test_some_users_only_is_counted_and_warned_about():  # U069
    data = dataset()
    some = np.arange(0, 40, 2)
    view = TableView(good_view(data).table[some])
    report = build_report(data, view, users=some, **everything(data))
    assert (report["users"]["evaluated"], report["users"]["eligible"]) == (20, 40)
    assert "only 20 of 40 users" in "\n".join(report["warnings"])
    held = held_out(data, "test", some)
    assert report["popularity"]["full"]["hr@10"]["value"] == pytest.approx(
        hit_ratio(popularity_counts(data, held)["full"], 10).mean()
    )


def test_nothing_about_single_users_or_items_in_the_result():  # U094
    data = dataset()
    result = assemble(
        build_report(data, good_view(data), **everything(data)),
        [row(1, 0.2)],
        algorithm="fedrecgel",
        seed=0,
        rounds=1,
        chosen={"chosen": 1, "by": "last"},
    )
    text = json.dumps(result)
    assert not any(str(name) in text for name in data.user_ids)
    assert not any(f'"{name}"' in text for name in data.item_ids)

    def longest(obj):
        if isinstance(obj, dict):
            return max([0, *map(longest, obj.values())])
        return max([len(obj), *map(longest, obj)]) if isinstance(obj, list) else 0

    assert longest({k: v for k, v in result.items() if k != "warnings"}) == 0


def test_nobody_to_evaluate_is_reported_not_fatal():
    data = make_dataset([[0, 1], [1]], validation=[2, 2], test=[-1, -1], num_items=4)
    report = build_report(data, TableView(np.zeros((2, 4))), **everything(data))
    assert report["users"]["evaluated"] == 0
    assert report["test"]["full"]["hr@10"] == {"value": None, "se": None}
    assert report["overlap"]["between_users"] is None
    assert "0 / 0" in table(report)


def test_versions_name_what_can_change_a_number():
    found = versions()
    packages = {"flwr", "torch", "numpy", "pandas"}
    assert set(found) == packages | {"python", "fedrecgel", "processor"}
    assert found["numpy"] == np.__version__


# --- sanity


def warnings_of(view, data):
    return "\n".join(build_report(data, view, **everything(data))["warnings"])


def test_a_good_model_passes_without_warning():
    data = dataset(users=200)
    assert warnings_of(good_view(data), data) == ""


def test_a_leak_of_the_test_item_is_suspicious():  # U072
    data = dataset()
    scores = np.zeros((data.num_users, data.num_items))
    scores[np.arange(data.num_users), data.test_items] = 1
    found = warnings_of(TableView(scores), data)
    assert "sampled hr@10 is 1.0000: does the model see the held-out items" in found


def test_a_collapsed_model_is_at_chance():  # U072
    data = dataset()
    found = warnings_of(TableView(np.zeros((data.num_users, data.num_items))), data)
    assert "full ndcg@10 is" in found
    assert "no different from chance" in found


def test_a_model_that_ranks_backwards_is_below_popularity():
    data = dataset()
    found = warnings_of(TableView(-good_view(data).table), data)
    assert "full hr@10 is exactly 0" in found
    assert "below popularity" in found


# --- the round


def test_the_best_round_by_test_is_labelled_as_optimistic():  # U067
    history = [row(10, 0.2, "test"), row(20, 0.4, "test"), row(30, 0.3, "test")]
    best = best_by_test(history)
    assert best["round"] == 20
    assert "optimistic" in best["note"]
    assert best["test"]["sampled"]["hr@10"]["value"] == 0.4


def test_a_run_that_was_never_tested_has_no_best_round_by_test():
    assert best_by_test([row(10, 0.2)]) is None


def finished(protocol="default"):
    data = dataset()
    data = replace(data, manifest=replace(data.manifest, protocol=protocol, name="two-tastes"))
    split = "test" if protocol == "paper" else "validation"
    counts = {"replies": 4, "failures": 1, "seconds": 0.5}
    traffic = {"bytes_up_per_user": 100.0, "bytes_down_per_user": 50.0}
    history = [row(n, 0.3 - 0.02 * abs(n - 8), split, **counts, **traffic) for n in range(1, 11)]
    result = assemble(
        build_report(data, good_view(data), **everything(data)),
        history,
        algorithm="fedrecgel",
        seed=3,
        rounds=10,
        chosen={"chosen": 8, "by": "highest validation ndcg@10 (sampled)"},
        config_hash="abc",
    )
    return history, result


def test_the_result_tells_the_story_of_the_run():  # U012
    _, result = finished()
    assert result["round"]["chosen"] == 8
    assert result["round"]["trained"] == 10
    assert (result["seed"], result["config_hash"], result["algorithm"]) == (3, "abc", "fedrecgel")
    assert result["training"] == {
        "last_loss": 0.1,
        "replies": 40,
        "failures": 10,
        "bytes_up_per_user": 100.0,
        "bytes_down_per_user": 50.0,
        "seconds": 5.0,
    }
    assert result["data"]["name"] == "two-tastes"
    assert len(result["data"]["hash"]) == 64
    assert "best_by_test" not in result


def test_best_by_test_stands_beside_under_protocol_paper_only():
    _, result = finished("paper")
    assert result["best_by_test"]["round"] == 8
    assert "best by TEST" in table(result)


def test_the_table_shows_model_beside_popularity_in_both_rankings():
    _, result = finished()
    text = table(result)
    print(text)
    cell = result["test"]["full"]["ndcg@10"]
    assert f"{cell['value']:.4f} ± {cell['se']:.4f}" in text
    assert "SAMPLED" in text
    assert "FULL: among all 60 items" in text
    assert "users evaluated / eligible: 40 / 40" in text
    assert max(map(len, text.splitlines())) <= 100


# --- files


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "result.json"
    write_json(path, {"a": np.float64(0.5), "b": np.int32(3), "ü": [1, None]})
    assert json.loads(path.read_text()) == {"a": 0.5, "b": 3, "ü": [1, None]}
    before = path.read_bytes()
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(path, {"a": math.nan})
    with pytest.raises(TypeError, match="ndarray has no place"):
        write_json(path, {"a": np.zeros(2)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("protocol", ["default", "paper"])
def test_curves_are_drawn_the_same_twice(tmp_path, protocol):
    history, result = finished(protocol)
    for name in ("a.png", "b.png"):
        curves(history, result, tmp_path / name)
    picture = (tmp_path / "a.png").read_bytes()
    assert picture.startswith(PNG)
    assert picture == (tmp_path / "b.png").read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_curves_of_a_single_round_or_none(tmp_path):
    _, result = finished()
    curves([row(1, 0.2)], result, tmp_path / "one.png")
    curves([], result, tmp_path / "none.png")
    assert (tmp_path / "none.png").read_bytes().startswith(PNG)
