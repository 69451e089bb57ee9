"""Evaluation of a node's users: ranks stay here, only sums over users leave."""

import numpy as np
import torch

from fedrecgel.client.published import publish
from fedrecgel.client.site import Site, algorithm_of
from fedrecgel.client.store import RANK_FIELDS
from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.algorithms.view import users_at_once
from fedrecgel.common.config import Config
from fedrecgel.common.errors import FederationError
from fedrecgel.common.evaluation import (
    HeldOut,
    PersonalView,
    rank_among_candidates,
    rank_and_list,
)
from fedrecgel.common.interactions import Ints
from fedrecgel.common.metrics import MetricSums, RankCounts
from fedrecgel.common.requests import EvaluateRequest, download_of
from fedrecgel.common.state import move, resolve_device

TOP = 10
"""Length of the lists that a node keeps of the final test."""


def evaluate(site: Site, request: EvaluateRequest) -> dict[str, float | int]:
    """Sums of metrics over the node's users, by ``sampled.*`` and ``full.*``."""
    algorithm = algorithm_of(request, site)
    if len(request.accepted) != len(site.users):
        raise FederationError(
            f"{site.name} hosts {len(site.users)} users, not {len(request.accepted)}"
        )
    held_out = site.held_out(request.split)
    lists = TOP if request.full and request.split == "test" else 0
    parts = []
    size = users_at_once(algorithm)
    for slots in np.split(np.arange(len(site.users)), np.arange(size, len(site.users), size)):
        view = _view(site, algorithm, request, slots)
        held = HeldOut(
            held_out.positives[slots],
            held_out.candidates[slots],
            held_out.excluded.select(slots),
        )
        parts.append(_rank(view, held, request.full, lists, slots))
    ranks = {name: RankCounts.concatenate([p[0][name] for p in parts]) for name in parts[0][0]}
    best = np.concatenate([part[1] for part in parts])
    if request.full and request.split == "test":
        # The node's own notes, for reports made where the data are; nothing of it is sent.
        # Users without a held-out item have no ranks, but a chosen round like the others.
        found = [np.stack((counts.greater, counts.ties), 1) for counts in ranks.values()]
        noted = np.full((len(site.users), RANK_FIELDS), -1)
        noted[ranks["full"].users] = np.concatenate((*found, best), axis=1)
        store = site.store(request.experiment, algorithm.private_template)
        store.finish(site.users, request.accepted, noted)
        if site.publishes:
            # After the chosen rounds are noted: who serves it looks them up.
            publish(site, request)
    sums: dict[str, float | int] = {"trained": int((request.accepted > 0).sum())}
    for ranking, counts in ranks.items():
        sums.update(MetricSums.from_counts(counts).to_flat(f"{ranking}."))
    return sums


def _view(
    site: Site, algorithm: Algorithm[Config], request: EvaluateRequest, slots: Ints
) -> PersonalView:
    store = site.store(request.experiment, algorithm.private_template)
    rounds = request.accepted[slots]
    found = store.trained(site.users[slots], rounds)
    kept = store.load(site.users[slots[found]], rounds[found])
    private = algorithm.fill_private(site.interactions.keys[slots], kept, found)
    device = resolve_device(algorithm.config.device)
    sent = download_of(request).take(torch.from_numpy(slots))
    download = Download(move(sent.shared, device), move(sent.addressed, device), sent.which)
    return algorithm.personal_view(download, move(private, device))


def _rank(
    view: PersonalView, held: HeldOut, full: bool, lists: int, slots: Ints
) -> tuple[dict[str, RankCounts], Ints]:
    """Ranks of the users in these slots, and their lists of best items."""
    ranks = {"sampled": rank_among_candidates(view, held.positives, held.candidates)}
    best = np.empty((len(ranks["sampled"].users), 0), dtype=np.int64)
    if full:
        ranks["full"], best = rank_and_list(view, held.positives, held.excluded, lists)
    by_slot = {n: RankCounts(c.greater, c.ties, slots[c.users]) for n, c in ranks.items()}
    return by_slot, best
