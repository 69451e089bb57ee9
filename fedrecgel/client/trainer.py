"""Training of a node's users: private state in, summed update out."""

import numpy as np
import torch

from fedrecgel.client.site import Site, algorithm_of
from fedrecgel.common.algorithms.base import Algorithm
from fedrecgel.common.algorithms.view import users_at_once
from fedrecgel.common.config import Config
from fedrecgel.common.errors import FederationError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.requests import TrainReply, TrainRequest, download_of
from fedrecgel.common.state import State, Update

GROUP_SAMPLES = 1 << 19
"""Samples (before merging) whose flat arrays exist at once; bounds a node's memory."""


def train(site: Site, request: TrainRequest) -> TrainReply:
    """Train the requested users and keep their new private state under the request's round."""
    algorithm = algorithm_of(request, site)
    if len(request.slots) and not 0 <= request.slots.min() <= request.slots.max() < len(site.users):
        raise FederationError(
            f"{site.name} hosts {len(site.users)} users; the server asks for others"
        )
    updates: list[Update] = []
    download = download_of(request)
    for group in _groups(site, request.slots, algorithm):
        slots, kept = request.slots[group], request.kept[:, group]
        private = _load(site, algorithm, request, slots, kept[0])
        found, state = algorithm.update_users(
            download.take(torch.from_numpy(group)),
            private,
            site.training_data(slots, leaky=algorithm.config.negatives == "leaky"),
            request.round,
        )
        store = site.store(request.experiment, algorithm.private_template)
        store.save(site.users[slots], kept, request.round, state)
        updates.extend(found)
    if algorithm.reduce == "sum" and updates:
        updates = [Update.total(updates)]
    if algorithm.config.upload == "dense":
        updates = [update.dense_rows(algorithm.num_items) for update in updates]
    return TrainReply(updates, request.round)


def _load(
    site: Site, algorithm: Algorithm[Config], request: TrainRequest, slots: Ints, accepted: Ints
) -> State:
    store = site.store(request.experiment, algorithm.private_template)
    trained = store.trained(site.users[slots], accepted)
    kept = store.load(site.users[slots[trained]], accepted[trained])
    return algorithm.fill_private(site.interactions.keys[slots], kept, trained)


def _groups(site: Site, slots: Ints, algorithm: Algorithm[Config]) -> list[Ints]:
    """Positions of ``slots`` in consecutive groups of bounded size."""
    if not len(slots):
        return []
    samples = np.cumsum(site.interactions.counts[slots] * (1 + algorithm.config.num_negatives))
    number = samples // GROUP_SAMPLES + np.arange(len(slots)) // users_at_once(algorithm)
    return np.split(np.arange(len(slots)), np.flatnonzero(np.diff(number)) + 1)
