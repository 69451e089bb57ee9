"""A deployed site: what its run published, its private store, and its file as it is now."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecgel.cli import main
from fedrecgel.client.published import load_published, published_file
from fedrecgel.common.errors import RunError
from fedrecgel.serve.current import Current
from fedrecgel.serve.model import Source
from fedrecgel.serve.site_place import SitePlace

OwnSite = Any  # of conftest.py, which tests do not import


def test_who_is_forgotten_between_two_runs_disturbs_neither(
    own_site: Callable[..., OwnSite], capfd: pytest.CaptureFixture[str]
) -> None:
    """Also where both runs and the site are one process that has the prepared data open."""
    site = own_site()
    site.train()
    user = "Quixote-3-Zx"
    assert main(["store", "forget", "--state", str(site.state), "--user", user]) == 0
    assert "/prepared/" in capfd.readouterr().out
    assert list((site.state / "prepared").iterdir()) == []
    model = SitePlace(site.state, site.file).load()
    assert model.recommend(user, 3).source is Source.FITTED  # as long as the file has them
    assert model.recommend("Quixote-2-Zx", 3).source is Source.KEPT
    outcome = site.train().outcome
    assert outcome is not None
    assert outcome.test["sampled"].users == 10


def test_kept_fitted_and_popular_at_one_site(own_site: Callable[..., OwnSite]) -> None:
    site = own_site()
    site.train()
    model = SitePlace(site.state, site.file).load()
    assert model.recommend("Quixote-3-Zx", 5).source is Source.KEPT
    fitted = model.recommend("newcomer", 50)
    assert fitted.source is Source.FITTED
    assert {"i0", "i1", "brand-new"}.isdisjoint(item.item for item in fitted.items)
    assert model.recommend("stranger", 5).source is Source.POPULARITY
    new = {item.item: item.estimated for item in model.recommend("Quixote-3-Zx", 50).items}
    assert new["brand-new"] is True
    assert sum(new.values()) == 1


def test_kept_scores_are_those_of_the_store_and_the_published_tensors(
    own_site: Callable[..., OwnSite],
) -> None:
    site = own_site()
    strategy = site.train()
    model = SitePlace(site.state, site.file).load()
    shared = load_published(site.state).shared
    assert strategy.outcome is not None
    assert np.array_equal(shared["items"], strategy.outcome.best.shared["items"])
    place = model.people.position("Quixote-4-Zx")
    private, found = model._store.load_chosen(np.array([place]))
    assert found.all()
    rows = shared["items"]
    expected = (rows[:, :-1] @ private["user"][0] + rows[:, -1]).tolist()
    scored = model.score("Quixote-4-Zx", [f"i{item}" for item in range(30)]).items
    assert [item.score for item in scored] == pytest.approx(expected, rel=1e-5)


def test_an_encrypted_store_needs_its_key(
    own_site: Callable[..., OwnSite], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = tmp_path / "key"
    assert main(["store", "make-key", str(key)]) == 0
    site = own_site(key)
    site.train()
    with pytest.raises(RunError, match="is encrypted; give its key file"):
        SitePlace(site.state, site.file).load()
    model = SitePlace(site.state, site.file, key).load()
    assert model.recommend("Quixote-3-Zx", 5).source is Source.KEPT


def test_whoever_was_forgotten_is_forgotten_at_once(
    own_site: Callable[..., OwnSite], capsys: pytest.CaptureFixture[str]
) -> None:
    site = own_site()
    site.train()
    model = SitePlace(site.state, site.file).load()
    user = "Quixote-5-Zx"
    assert model.recommend(user, 5).source is Source.KEPT
    assert main(["store", "forget", "--state", str(site.state), "--user", user]) == 0
    # The open server neither keeps them nor keeps the store from being emptied.
    assert model.recommend(user, 5).source is Source.FITTED
    site.write()
    text = site.file.read_text()
    site.file.write_text("\n".join(row for row in text.splitlines() if user not in row) + "\n")
    assert SitePlace(site.state, site.file).load().recommend(user, 5).source is Source.POPULARITY


def test_a_changed_file_and_a_new_run_are_taken_over(own_site: Callable[..., OwnSite]) -> None:
    site, said = own_site(), []
    current = Current(SitePlace(site.state, site.file), said.append)
    assert not current.refresh()
    with pytest.raises(RunError, match="no model has been published"):
        current.model()
    assert not current.refresh()
    assert len(said) == 1
    site.train()
    assert current.refresh()
    first = current.model()
    assert first.recommend("late", 5).source is Source.POPULARITY
    assert not current.refresh()
    site.write("late,i3,1", "late,i7,2")
    assert current.refresh()
    assert current.model().recommend("late", 5).source is Source.FITTED
    site.train(seed=1)
    assert current.refresh()
    second = current.model()
    assert second.published.experiment.id != first.published.experiment.id
    # Who still holds the old one gets its answers.
    assert first.recommend("Quixote-3-Zx", 5).source is Source.KEPT
    assert "Quixote" not in "".join(said)


def test_a_damaged_model_leaves_the_old_one(own_site: Callable[..., OwnSite]) -> None:
    site, said = own_site(), []
    site.train()
    current = Current(SitePlace(site.state, site.file), said.append)
    current.refresh()
    model = current.model()
    path = published_file(site.state)
    content = path.read_bytes()
    path.write_bytes(content[:100])
    assert not current.refresh()
    assert current.model() is model
    assert "is damaged" in said[-1]
    path.write_bytes(content)
    assert current.refresh()


def test_addressed_tensors_serve_those_whom_they_belong_to(
    own_site: Callable[..., OwnSite],
) -> None:
    """PerFedRec scores with the user's cluster; somebody new has none."""
    site = own_site()
    site.train("perfedrec", embedding_dim=4, clusters=2)
    published = load_published(site.state)
    assert published.addressed["cluster"].ndim == 3
    known = published.download("Quixote-3-Zx", published.shared)
    assert known.rows(1).tolist() == [0]
    assert known.addressed["cluster"].shape[1:] == (30, 4)
    assert published.download("newcomer", published.shared).rows(1).tolist() == [-1]
    model = SitePlace(site.state, site.file).load()
    assert model.recommend("Quixote-3-Zx", 5).source is Source.KEPT
    assert model.recommend("newcomer", 5).source is Source.FITTED


def test_only_the_owner_may_read_what_is_published(own_site: Callable[..., OwnSite]) -> None:
    site = own_site()
    site.train()
    path = published_file(site.state)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    # Without addressed tensors nothing says who is at the site.
    assert sorted(os.listdir(path.parent)) == [".lock", "model.safetensors"]
    assert not len(load_published(site.state).keys)
