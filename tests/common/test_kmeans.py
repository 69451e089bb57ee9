"""K-means: groups that anybody can see, and what happens at the edges."""

import numpy as np
import torch

from fedrecgel.common.hashing import mix, normal
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


def test_few_points_have_a_cluster_each() -> None:
    assert kmeans(heaps(2, 1), 5, 0).tolist() == [0, 1]
    assert kmeans(heaps(1, 0), 5, 0).tolist() == []


def test_equal_points_share_one_cluster() -> None:
    assert len(set(kmeans(torch.ones(9, 2), 3, 0).tolist())) == 1
