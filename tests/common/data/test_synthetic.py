"""Invented data: sizes, a long tail, tastes, and the same for the same seed."""

from pathlib import Path

import numpy as np
import pytest

from fedrecgel.common.data import prepare, synthetic
from fedrecgel.common.data.synthetic import SyntheticSettings, make_synthetic
from fedrecgel.common.errors import ConfigError


def rows(settings: SyntheticSettings, seed: int = 0) -> np.ndarray:
    events = make_synthetic(settings, seed).events
    return np.stack([events.user, events.item, events.time])


def test_the_same_seed_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = SyntheticSettings(users=60, items=700, interactions=8)
    first = rows(settings)
    assert not np.array_equal(first, rows(settings, seed=1))
    monkeypatch.setattr(synthetic, "_BLOCK", 7)
    assert np.array_equal(first, rows(settings))


@pytest.mark.parametrize("items", [60, 3_000])
def test_sizes_and_no_pair_twice(items: int) -> None:
    settings = SyntheticSettings(users=500, items=items, interactions=15)
    user, item, _ = rows(settings)
    assert len(np.unique(user)) == 500
    assert np.bincount(user).min() >= 5
    assert 13 < len(user) / 500 < 17
    assert item.max() < items
    assert len(np.unique(user * items + item)) == len(user)


def test_popularity_has_a_long_tail_unrelated_to_ids() -> None:
    _, item, _ = rows(SyntheticSettings(users=2_000, items=1_000, interactions=20))
    counts = np.bincount(item, minlength=1_000)
    top = np.sort(counts)[::-1]
    assert top[:100].sum() > 0.25 * counts.sum()
    assert abs(np.corrcoef(np.arange(1_000), counts)[0, 1]) < 0.15


def test_users_per_item_sets_the_catalogue() -> None:
    settings = SyntheticSettings(users=400, users_per_item=10, interactions=20)
    assert settings.sizes() == (400, 800, 20.0)
    settings = SyntheticSettings(users=400, users_per_item=10, items=100)
    with pytest.raises(ConfigError, match=r"interactions is 2.5"):
        settings.sizes()
    settings = SyntheticSettings(users=400, users_per_item=40, items=100)
    assert settings.sizes() == (400, 100, 10.0)


def test_disagreement_spreads_the_users_over_the_items() -> None:
    def overlap(disagreement: float) -> float:
        """Mean similarity of the items of neighbouring users."""
        settings = SyntheticSettings(300, 300, 20, None, disagreement, tail=2.0)
        user, item, _ = rows(settings)
        taken = np.zeros((300, 300))
        taken[user, item] = 1
        taken /= np.linalg.norm(taken, axis=1, keepdims=True)
        return float(np.mean(taken @ taken.T))

    assert overlap(0.0) > overlap(0.3) + 0.05
    assert overlap(0.3) > overlap(1.0) + 0.05


def test_tastes_can_be_learned_from_neighbours(tmp_path: Path) -> None:
    data = prepare(
        "synthetic", tmp_path / "data", users=500, items=300, interactions=25, disagreement=0.8
    )
    taken = np.zeros((data.num_users, data.num_items))
    taken[np.repeat(np.arange(data.num_users), np.diff(data.train_offsets)), data.train_items] = 1
    together = taken.T @ taken
    together /= np.sqrt(np.outer(taken.sum(0), taken.sum(0))).clip(1)
    np.fill_diagonal(together, 0)
    popular = np.broadcast_to(taken.sum(0), taken.shape)

    def hits(scores: np.ndarray) -> float:
        users = np.arange(data.num_users)[:, None]
        rivals = scores[users, data.test_candidates]
        rank = (rivals >= scores[users, data.test_items[:, None]]).sum(1)
        return float((rank < 10).mean())

    assert hits(taken @ together) > hits(popular) + 0.1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SyntheticSettings(users=0), "users is 0; it must be from 1"),
        (SyntheticSettings(items=5), "items is 5"),
        (SyntheticSettings(disagreement=1.5), "disagreement is 1.5; it must be from 0 to 1"),
        (
            SyntheticSettings(items=20, interactions=15),
            "interactions is 15; it must be from 5 to 10",
        ),
        (SyntheticSettings(users_per_item=0), "users-per-item is 0"),
        (SyntheticSettings(10, 20, 5, 6), "at most two of"),
        (SyntheticSettings(disagreement=float("nan")), "disagreement is nan"),
    ],
)
def test_impossible_settings(settings: SyntheticSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings.sizes()


@pytest.mark.slow
def test_a_hundred_thousand_users(tmp_path: Path) -> None:
    data = prepare("synthetic", tmp_path / "data", users=100_000, items=10_000)
    assert data.num_users == 100_000
    assert data.num_items > 9_900
