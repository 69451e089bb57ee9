"""Evaluation of a node's users: ranks stay here, only sums over users leave."""

import numpy as np

from fedrecgel.client.site import Site, algorithm_of
from fedrecgel.client.store import RANK_FIELDS
from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.config import Config
from fedrecgel.common.errors import FederationError
from fedrecgel.common.evaluation import rank_among_candidates, rank_and_list
from fedrecgel.common.metrics import MetricSums
from fedrecgel.common.requests import EvaluateRequest
from fedrecgel.common.state import State, move, resolve_device

TOP = 10
"""Length of the lists that a node keeps of the final test."""


def evaluate(site: Site, request: EvaluateRequest) -> dict[str, float | int]:
    """Sums of metrics over the node's users, by ``sampled.*`` and ``full.*``."""
    algorithm = algorithm_of(request, site)
    if len(request.accepted) != len(site.users):
        raise FederationError(
            f"{site.name} hosts {len(site.users)} users, not {len(request.accepted)}"
        )
    private, trained = _private(site, algorithm, request)
    device = resolve_device(algorithm.config.device)
    download = Download(move(request.shared, device), move(request.addressed, device))
    view = algorithm.personal_view(download, move(private, device))
    held_out = site.held_out(request.split)
    ranks = {"sampled": rank_among_candidates(view, held_out.positives, held_out.candidates)}
    if request.full:
        lists = TOP if request.split == "test" else 0
        ranks["full"], best = rank_and_list(view, held_out.positives, held_out.excluded, lists)
    if request.full and request.split == "test":
        # The node's own notes, for reports made where the data are; nothing of it is sent.
        # Users without a held-out item have no ranks, but a chosen round like the others.
        found = [np.stack((counts.greater, counts.ties), 1) for counts in ranks.values()]
        noted = np.full((len(site.users), RANK_FIELDS), -1)
        noted[ranks["full"].users] = np.concatenate((*found, best), axis=1)
        store = site.store(request.experiment, algorithm.private_template)
        store.finish(site.users, request.accepted, noted)
    sums: dict[str, float | int] = {"trained": trained}
    for ranking, counts in ranks.items():
        sums.update(MetricSums.from_counts(counts).to_flat(f"{ranking}."))
    return sums


def _private(
    site: Site, algorithm: Algorithm[Config], request: EvaluateRequest
) -> tuple[State, int]:
    """Private state of all users, and how many of them were ever trained."""
    store = site.store(request.experiment, algorithm.private_template)
    found = request.accepted > 0
    kept = store.load(site.users[found], request.accepted[found])
    return algorithm.fill_private(site.interactions.keys, kept, found), int(found.sum())
