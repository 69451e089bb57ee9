"""K-means: groups that anybody can see, and what happens at the edges."""

from typing import Any

import numpy as np
import pytest
import torch

from fedrecgel.common import kmeans as module
from fedrecgel.common.hashing import mix, normal, uniform
from fedrecgel.common.kmeans import kmeans


def heaps(count: int, each: int) -> torch.Tensor:
    """``each`` points around (0, 0), (10, 10), ..."""
    centre = np.repeat(np.arange(count), each)[:, None] * 10.0
    spread = normal(mix("points", np.arange(count * each)[:, None], np.arange(2)))
    return torch.from_numpy(centre + 0.1 * spread)


def test_heaps_far_apart_are_found() -> None:
    for seed in range(10):
        labels = kmeans(heaps(3, 20), 3, seed).view(3, 20)
        assert all(len(set(row.tolist())) == 1 for row in labels)
        assert len(set(labels[:, 0].tolist())) == 3


def test_the_labels_are_a_function_of_the_points_and_the_stream() -> None:
    points = torch.from_numpy(normal(mix("scattered", np.arange(200)[:, None], np.arange(3))))
    assert torch.equal(kmeans(points, 5, 1, 2), kmeans(points, 5, 1, 2))
    assert not torch.equal(kmeans(points, 5, 1, 2), kmeans(points, 5, 1, 3))


def test_each_point_is_with_the_nearest_mean() -> None:
    points = torch.from_numpy(normal(mix("scattered", np.arange(300)[:, None], np.arange(2))))
    labels = kmeans(points, 4, 0)
    means = torch.stack([points[labels == label].mean(0) for label in range(4)])
    assert torch.equal(torch.cdist(points, means).argmin(1), labels)


def by_hand(points: Any, clusters: int, *stream: int) -> tuple[list[int], int]:
    """Labels, point by point, and how often they were given anew."""
    draws = uniform(mix("k-means", *stream, np.arange(clusters)))
    centres = [points[int(draws[0] * len(points))]]
    for draw in draws[1:]:
        total = np.cumsum([min(((p - c) ** 2).sum() for c in centres) for p in points])
        centres.append(points[next(i for i, t in enumerate(total) if t > draw * total[-1])])
    labels: list[int] = []
    for times in range(100):
        before = labels
        labels = [int(np.argmin([((p - c) ** 2).sum() for c in centres])) for p in points]
        if labels == before:
            return labels, times
        for k in set(labels):
            inside = [p for p, label in zip(points, labels, strict=True) if label == k]
            centres[k] = sum(inside) / len(inside)
    raise AssertionError("never settles")


def test_the_labels_are_the_calculation_by_hand() -> None:
    points = normal(mix("scattered", np.arange(80)[:, None], np.arange(2)))
    found = [by_hand(points, 5, seed, 1) for seed in range(8)]
    assert [kmeans(torch.from_numpy(points), 5, seed, 1).tolist() for seed in range(8)] == [
        labels for labels, _ in found
    ]
    assert min(times for _, times in found) > 2  # the start does not have them already


def test_a_cluster_that_has_no_points_stays_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at 0, say, where it would take a point from another."""
    start = torch.tensor([[1.0], [10.0], [100.0]])
    monkeypatch.setattr(module, "_start", lambda *_: start)
    points = torch.tensor([[0.0], [1.0], [2.0], [9.0], [10.0]])
    assert kmeans(points, 3, 0).tolist() == [0, 0, 0, 1, 1]


def test_few_points_have_a_cluster_each() -> None:
    assert kmeans(heaps(2, 1), 5, 0).tolist() == [0, 1]
    assert kmeans(heaps(1, 0), 5, 0).tolist() == []


def test_equal_points_share_one_cluster() -> None:
    assert len(set(kmeans(torch.ones(9, 2), 3, 0).tolist())) == 1
