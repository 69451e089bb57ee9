"""Whose private parameters answer, and with what."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from fedrecgel import Result
from fedrecgel.common.algorithms.base import Download
from fedrecgel.common.algorithms.fit import fit_private
from fedrecgel.common.errors import DataError
from fedrecgel.common.interactions import Ints
from fedrecgel.serve import model as serving
from fedrecgel.serve.model import Model, Source
from fedrecgel.serve.people import People


def make_model(result: Result) -> Model:
    return Model(result.published(), People.of_dataset(result.data), result.store())


def trained(result: Result) -> tuple[Ints, Ints]:
    """Users with and without a kept state."""
    found = result.store().load_chosen(np.arange(result.data.num_users))[1]
    return np.flatnonzero(found), np.flatnonzero(~found)


@pytest.fixture(scope="module")
def model(served_run: Result) -> Model:
    return make_model(served_run)


def test_trained_users_get_what_the_run_recommends(served_run: Result, model: Model) -> None:
    kept, _ = trained(served_run)
    for index in kept[:5]:
        user = str(served_run.data.user_ids[index])
        answer = model.recommend(user, 7)
        expected = served_run.recommend(user, 7)
        assert answer.source is Source.KEPT
        assert [item.item for item in answer.items] == [item.item for item in expected]
        scores = [item.score for item in expected]
        assert [item.score for item in answer.items] == pytest.approx(scores, rel=1e-5)
        assert not any(item.estimated for item in answer.items)


def test_others_get_a_local_fit_to_all_their_items(served_run: Result, model: Model) -> None:
    data, index = served_run.data, trained(served_run)[1][0]
    user = str(data.user_ids[index])
    answer = model.recommend(user, 80, repeat=True)
    assert answer.source is Source.FITTED
    download = Download(served_run.shared)
    known = model.people.interactions(int(index))
    assert len(known.items) == len(data.train_of(index)) + 2
    private = fit_private(served_run.algorithm, download, known)
    scores = served_run.algorithm.personal_view(download, private).catalogue(torch.tensor([0]))[0]
    found = {item.item: item.score for item in answer.items}
    expected = dict(zip(data.item_ids.tolist(), scores.tolist(), strict=True))
    assert found == pytest.approx(expected, rel=1e-5)


def test_a_fit_is_made_once(served_run: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(
        serving, "fit_private", lambda *args, **more: calls.append(1) or fit_private(*args, **more)
    )
    model = make_model(served_run)
    user = str(served_run.data.user_ids[trained(served_run)[1][0]])
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: model.recommend(user, 5), range(8)))
    assert answers.count(answers[0]) == 8
    assert len(calls) == 1


def test_where_too_many_wait_for_a_fit_popular_items_are_answered(
    served_run: Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "WAITING", 0)
    user = str(served_run.data.user_ids[trained(served_run)[1][0]])
    assert make_model(served_run).recommend(user, 5).source is Source.POPULARITY


def test_somebody_unknown_gets_the_most_popular_items(served_run: Result, model: Model) -> None:
    data = served_run.data
    counts = np.bincount(data.train_items, minlength=data.num_items)
    counts += np.bincount(data.validation_items[data.validation_items >= 0], minlength=len(counts))
    counts += np.bincount(data.test_items[data.test_items >= 0], minlength=len(counts))
    best = np.argsort(-counts, kind="stable")[:6]
    answer = model.recommend("nobody", 6)
    assert answer.source is Source.POPULARITY
    assert [item.item for item in answer.items] == data.item_ids[best].tolist()
    assert [item.score for item in answer.items] == counts[best].tolist()


def test_own_and_excluded_items_are_left_out(served_run: Result, model: Model) -> None:
    data, index = served_run.data, trained(served_run)[0][0]
    user = str(data.user_ids[index])
    all_items = {item.item for item in model.recommend(user, 1_000, repeat=True).items}
    assert all_items == set(data.item_ids.tolist())
    own = set(data.item_ids[model.people.items_of(int(index))].tolist())
    first = model.recommend(user, 1).items[0].item
    others = {item.item for item in model.recommend(user, 1_000, [first, "not an item"]).items}
    assert others == all_items - own - {first}


def test_scores_are_those_of_the_list_in_the_order_asked(model: Model) -> None:
    user = str(model.people.user_ids[0])
    listed = model.recommend(user, 3).items
    answer = model.score(user, [item.item for item in reversed(listed)])
    assert answer.items == listed[::-1]
    with pytest.raises(DataError, match="no item 'nothing' among the"):
        model.score(user, ["nothing"])


def test_caches_are_bounded(served_run: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    data = served_run.data
    monkeypatch.setattr(serving, "SCORES_BYTES", 3 * 8 * data.num_items)
    model = make_model(served_run)
    users = trained(served_run)[0]
    for user in data.user_ids[users].tolist():
        model.recommend(user, 1)
    assert 0 < len(model._scores) <= 3 < len(users)
