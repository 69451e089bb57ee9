"""Ranking held-out items in blocks of users: among their candidates and in the whole catalogue.

Memory is bounded by the block: at most `BUDGET` bytes of scores exist at a time (one user's
catalogue if that alone is larger), never users x items x features. A view's row i is the user at
position i of the arrays given beside it: dataset user i, or the i-th of a subset (`held_out`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import FedRecError
from fedrecgel.common.item_lists import Ints, ItemLists, join_lists
from fedrecgel.common.metrics import RankCounts

__all__ = [
    "BUDGET",
    "HeldOut",
    "Ints",
    "ItemLists",
    "PersonalView",
    "blocks",
    "count_nan_rows",
    "excluded_items",
    "held_out",
    "rank_among_candidates",
    "rank_and_list",
    "rank_in_catalogue",
    "refuse_nan",
    "top_k",
]

BUDGET = 16 * 2**20
"""Bytes of scores held at once. Blocks that fit the processor's cache are also the fastest."""


class PersonalView(Protocol):
    """Scores as each user's device would compute them, its private parameters included.

    Index tensors arrive on the CPU; scores may be returned on any device and in any float type.
    A returned tensor is read, never written to, so it may be a broadcast of a smaller one.
    """

    @property
    def num_users(self) -> int:
        """Number of users; their positions are 0 .. num_users - 1."""

    @property
    def num_items(self) -> int:
        """Number of items of the catalogue."""

    def candidates(self, users: Tensor, items: Tensor) -> Tensor:
        """Scores (B, C) of ``items`` (B, C) for ``users`` (B,), each user with items of its own."""

    def catalogue(self, users: Tensor) -> Tensor:
        """Scores (B, M) of all items for ``users`` (B,)."""


@dataclass(frozen=True, eq=False)
class HeldOut:
    """What one split asks of each user: the positive, its rivals, and what does not count."""

    positives: NDArray[np.integer]
    """(n,) held-out item, -1 = none: such a user is not evaluated."""
    candidates: NDArray[np.integer]
    """(n, C) sampled rivals, padded with -1."""
    excluded: ItemLists
    """The user's other interactions, left out of the full ranking."""


def held_out(dataset: Dataset, split: str, users: Ints | None = None) -> HeldOut:
    """Return ``validation`` or ``test`` of all users, or of ``users`` in the order given."""
    excluded = excluded_items(dataset, split)
    if split == "test":
        positives, candidates = dataset.test_items, dataset.test_candidates
    else:
        positives, candidates = dataset.validation_items, dataset.validation_candidates
    if users is None:
        return HeldOut(positives, candidates, excluded)
    return HeldOut(positives[users], candidates[users], excluded.select(users))


def excluded_items(dataset: Dataset, split: str) -> ItemLists:
    """List what each user has interacted with before the held-out item.

    The train items, and the validation items too when testing. While validating the test items
    count as rivals like any other: leaving them out would use what is not known yet. Where users
    have several held-out items, those of the same split are left out too: the positive itself
    counts even where it stands among them.
    """
    if split not in ("validation", "test"):
        raise FedRecError(f"unknown split {split!r}: use 'validation' or 'test'")
    parts = [ItemLists(dataset.train_items, dataset.train_offsets)]
    if split == "test":
        parts.append(ItemLists(*dataset.held_out("validation")))
    if dataset.several:
        parts.append(ItemLists(*dataset.held_out(split)))
    return join_lists(*parts)


def rank_among_candidates(
    view: PersonalView,
    positives: NDArray[np.integer],
    candidates: NDArray[np.integer],
    *,
    budget: int = BUDGET,
) -> RankCounts:
    """Rank each positive (N,) among its candidates (N, C); -1 is padding.

    Users without a positive are left out; ``users`` of the result says who was ranked.
    """
    _check_rows(view, len(positives), len(candidates))
    ranked = np.flatnonzero(np.asarray(positives) >= 0)
    parts, nan_users = [], 0
    for rows in blocks(ranked, 1 + candidates.shape[1], budget):
        items = np.concatenate([positives[rows][:, None], candidates[rows]], axis=1)
        tensor = torch.from_numpy(items.astype(np.int64))
        with torch.inference_mode():
            scores = view.candidates(torch.from_numpy(rows), tensor.clamp(min=0))
            padding = (tensor < 0).to(scores.device)
            scores = scores.masked_fill(padding, 0.0)
            nan_users += count_nan_rows(scores)
            own = scores[:, :1]
            greater = torch.count_nonzero((scores > own) & ~padding, dim=1)
            ties = torch.count_nonzero((scores == own) & ~padding, dim=1) - 1
        parts.append(RankCounts(greater.cpu().numpy(), ties.cpu().numpy(), rows))
    refuse_nan(nan_users, len(ranked))
    return RankCounts.concatenate(parts)


def rank_in_catalogue(
    view: PersonalView,
    positives: NDArray[np.integer],
    excluded: ItemLists,
    *,
    budget: int = BUDGET,
) -> RankCounts:
    """Rank each positive (N,) among all items but the user's ``excluded`` ones.

    The positive itself always counts, even where it stands among the excluded (repeated
    interactions under protocol paper). Users without a positive are left out.
    """
    return rank_and_list(view, positives, excluded, 0, budget=budget)[0]


def rank_and_list(
    view: PersonalView,
    positives: NDArray[np.integer],
    excluded: ItemLists,
    k: int,
    *,
    budget: int = BUDGET,
) -> tuple[RankCounts, Ints]:
    """`rank_in_catalogue` and `top_k` of the same users (n, k) while scoring each only once."""
    _check_rows(view, len(positives), len(excluded))
    ranked = np.flatnonzero(np.asarray(positives) >= 0)
    parts, lists, nan_users = [], [np.empty((0, k), dtype=np.int64)], 0
    for rows in blocks(ranked, view.num_items, budget):
        with torch.inference_mode():
            scores = view.catalogue(torch.from_numpy(rows))
            nan_users += count_nan_rows(scores)
            which, items = excluded.entries(rows)
            targets = np.asarray(positives[rows], dtype=np.int64)
            greater, ties = _count_in_catalogue(scores, targets, which, items)
            lists.append(_best(scores, which, items, k))
        parts.append(RankCounts(greater, ties, rows))
    refuse_nan(nan_users, len(ranked))
    return RankCounts.concatenate(parts), np.concatenate(lists)


def top_k(
    view: PersonalView, users: Ints, k: int, excluded: ItemLists, *, budget: int = BUDGET
) -> Ints:
    """List the ``k`` best items (B, k) of ``users`` (B,), best first, without their excluded ones.

    Equal scores are listed by item index, lowest first. Short lists are padded with -1.
    ``excluded`` has a list for every user of the view.
    """
    _check_rows(view, len(excluded))
    lists, nan_users = [np.empty((0, k), dtype=np.int64)], 0
    for rows in blocks(np.array(users, dtype=np.int64), view.num_items, budget):
        with torch.inference_mode():
            scores = view.catalogue(torch.from_numpy(rows))
            nan_users += count_nan_rows(scores)
            lists.append(_best(scores, *excluded.entries(rows), k))
    refuse_nan(nan_users, len(users))
    return np.concatenate(lists)


def blocks(rows: Ints, columns: int, budget: int) -> Iterator[Ints]:
    """Cut ``rows`` so that ``columns`` float32 scores of each fit in ``budget`` bytes."""
    size = max(1, budget // (4 * max(columns, 1)))
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def _check_rows(view: PersonalView, *lengths: int) -> None:
    assert all(n == view.num_users for n in lengths), (view.num_users, lengths)


def count_nan_rows(scores: Tensor) -> int:
    """Count the rows that hold a nan."""
    # A row's sum is one quick pass; only a row whose sum is not finite can hold a nan.
    suspicious = ~torch.isfinite(scores.sum(dim=1))
    return int(torch.isnan(scores[suspicious]).any(dim=1).sum()) if suspicious.any() else 0


def refuse_nan(nan_users: int, users: int) -> None:
    """Raise where the scores of some users are not numbers."""
    if nan_users:
        raise FedRecError(
            f"scores of {nan_users} of {users} users are not numbers (nan): the training has "
            "diverged; lower server-lr or local-lr, or check the initial parameters"
        )


def _count_in_catalogue(
    scores: Tensor, targets: Ints, which: Ints, items: Ints
) -> tuple[Ints, Ints]:
    # Counts over everything, less those of the excluded items: no copy and no mask of the block.
    own = scores.gather(1, torch.from_numpy(targets).to(scores.device)[:, None])
    greater = torch.count_nonzero(scores > own, dim=1)
    ties = torch.count_nonzero(scores == own, dim=1) - 1
    width = scores.shape[1]
    once = np.unique((which * width + items)[items != targets[which]])
    row = torch.from_numpy(once // width).to(scores.device)
    out = scores[row, torch.from_numpy(once % width).to(scores.device)]
    rivals = own[row, 0]
    greater -= torch.bincount(row[out > rivals], minlength=len(scores))
    ties -= torch.bincount(row[out == rivals], minlength=len(scores))
    return greater.cpu().numpy(), ties.cpu().numpy()


def _best(scores: Tensor, which: Ints, items: Ints, k: int) -> Ints:
    width = min(k, scores.shape[1])
    if width == 0:
        return np.full((len(scores), k), -1, dtype=np.int64)
    # Real scores stay above the -inf of the excluded ones, even where a model returns -inf.
    masked = scores.clamp(min=torch.finfo(scores.dtype).min)
    places = (torch.from_numpy(which).to(scores.device), torch.from_numpy(items).to(scores.device))
    masked[places] = -torch.inf
    values, chosen = torch.topk(masked, width, dim=1)
    last = values[:, -1:]
    tied = (torch.count_nonzero(masked >= last, dim=1) > width).nonzero()[:, 0]
    if len(tied):
        chosen[tied] = _lowest_index_first(masked[tied], last[tied], width)
    chosen = chosen.sort(dim=1).values
    values, order = masked.gather(1, chosen).sort(dim=1, descending=True, stable=True)
    best = chosen.gather(1, order).masked_fill(values == -torch.inf, -1)
    padded = np.full((len(scores), k), -1, dtype=np.int64)
    padded[:, :width] = best.cpu().numpy()
    return padded


def _lowest_index_first(masked: Tensor, last: Tensor, width: int) -> Tensor:
    """Return the ``width`` best columns of each row where several share the last score."""
    above, level = masked > last, masked == last
    free = width - torch.count_nonzero(above, dim=1)[:, None]
    level &= torch.cumsum(level, dim=1, dtype=torch.int32) <= free
    columns: Tensor = (above | level).nonzero()[:, 1]
    return columns.view(len(masked), width)
