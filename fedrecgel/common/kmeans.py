"""K-means (Lloyd, 1982), begun as k-means++ does (Arthur, Vassilvitskii, 2007), drawn by hash."""

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.hashing import mix, uniform

MOST_PASSES = 50
"""Passes over the points after which the labels are taken as they are."""


def kmeans(points: Tensor, clusters: int, *stream: int | str) -> Tensor:
    """(n,) int64 label of each point (n, d).

    Parameters
    ----------
    clusters
        How many; a point of its own each where there are no more points than that.
    stream
        What the start is drawn for.
    """
    if len(points) <= clusters:
        return torch.arange(len(points))
    centres = _start(points, clusters, *stream)
    labels = _nearest(points, centres)
    for _ in range(MOST_PASSES):
        counts = torch.bincount(labels, minlength=clusters)
        sums = torch.zeros_like(centres).index_add_(0, labels, points)
        # A cluster that lost all its points stays where it was.
        centres = torch.where(counts[:, None] > 0, sums / counts.clamp(min=1)[:, None], centres)
        before, labels = labels, _nearest(points, centres)
        if torch.equal(before, labels):
            break
    return labels


def _start(points: Tensor, clusters: int, *stream: int | str) -> Tensor:
    """Points of the data, each chosen with probability as its squared distance to those before."""
    draws = uniform(mix("k-means", *stream, np.arange(clusters)))
    chosen = [min(int(draws[0] * len(points)), len(points) - 1)]
    distance = torch.full((len(points),), torch.inf, dtype=torch.float64)
    for draw in draws[1:]:
        last = (points - points[chosen[-1]]).square().sum(1).double()
        distance = torch.minimum(distance, last)
        total = distance.cumsum(0)
        place = torch.searchsorted(total, torch.tensor(draw * float(total[-1])), right=True)
        chosen.append(min(int(place), len(points) - 1))
    return points[chosen].clone()


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    # |p - c|^2 less |p|^2, which is the same for all centres.
    return (centres.square().sum(1) - 2.0 * points @ centres.T).argmin(1)
