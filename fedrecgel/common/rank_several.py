"""Ranking several held-out items per user, in blocks: among candidates and in the catalogue."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.evaluation import (
    BUDGET,
    PersonalView,
    blocks,
    count_nan_rows,
    refuse_nan,
)
from fedrecgel.common.item_lists import Ints, ItemLists, join_lists
from fedrecgel.common.several import SeveralCounts

__all__ = ["HeldOutLists", "held_out_lists", "rank_several"]


@dataclass(frozen=True, eq=False)
class HeldOutLists:
    """What one split asks of each user, with all positives; see `evaluation.HeldOut`."""

    positives: ItemLists
    candidates: NDArray[np.integer]
    excluded: ItemLists


def held_out_lists(dataset: Dataset, split: str, users: Ints | None = None) -> HeldOutLists:
    """Return ``validation`` or ``test`` of all users, or of ``users`` in the order given."""
    positives = ItemLists(*dataset.held_out(split))
    candidates = dataset.test_candidates if split == "test" else dataset.validation_candidates
    excluded = ItemLists(dataset.train_items, dataset.train_offsets)
    if split == "test":
        excluded = join_lists(excluded, ItemLists(*dataset.held_out("validation")))
    if users is None:
        return HeldOutLists(positives, candidates, excluded)
    return HeldOutLists(positives.select(users), candidates[users], excluded.select(users))


def rank_several(
    view: PersonalView, held: HeldOutLists, *, full: bool, budget: int = BUDGET
) -> SeveralCounts:
    """Rank all positives of each user.

    In the ``full`` ranking among all items but the excluded ones; else among the user's candidates
    and positives. Users without a positive are left out.
    """
    lengths = np.diff(held.positives.offsets)
    ranked = np.flatnonzero(lengths > 0)
    most = int(lengths.max(initial=0))
    width = view.num_items if full else most + held.candidates.shape[1]
    parts: list[Ints] = []
    nan_users = 0
    for rows in blocks(ranked, width + most, budget):
        own, valid = _padded(held.positives, rows)
        with torch.inference_mode():
            if full:
                scores, kept = _catalogue(view, held, rows)
            else:
                scores, kept = _among(view, held, rows, own)
            nan_users += count_nan_rows(scores)
            low = torch.finfo(scores.dtype).min
            scores = scores.clamp(min=low).masked_fill(~kept.to(scores.device), -torch.inf)
            mine = scores.gather(1, own.to(scores.device)) if full else scores[:, : own.shape[1]]
            if full:  # a positive counts even where it is excluded (repeated interactions)
                mine = mine.clamp(min=low)
            mine = mine.masked_fill(~valid.to(mine.device), -torch.inf).contiguous()
            numbers = [*_standing(scores, mine), *_standing(mine, mine)]
        chosen = valid.numpy()
        parts.append(np.stack([n.cpu().numpy()[chosen] for n in numbers]))
    refuse_nan(nan_users, len(ranked))
    joined = np.concatenate([np.empty((4, 0), dtype=np.int64), *parts], axis=1)
    owner = np.repeat(np.arange(len(ranked)), lengths[ranked])
    return SeveralCounts(ranked, owner, *joined)


def _padded(lists: ItemLists, rows: Ints) -> tuple[Tensor, Tensor]:
    """(B, P) items of these users, padded with 0, and where they are real."""
    which, items = lists.entries(rows)
    lengths = np.bincount(which, minlength=len(rows))
    column = np.arange(len(which)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    padded = np.zeros((len(rows), int(lengths.max())), dtype=np.int64)
    real = np.zeros(padded.shape, dtype=bool)
    padded[which, column], real[which, column] = items, True
    return torch.from_numpy(padded), torch.from_numpy(real)


def _catalogue(view: PersonalView, held: HeldOutLists, rows: Ints) -> tuple[Tensor, Tensor]:
    scores = view.catalogue(torch.from_numpy(rows))
    kept = torch.ones(scores.shape, dtype=torch.bool)
    which, items = held.excluded.entries(rows)
    kept[torch.from_numpy(which), torch.from_numpy(items)] = False
    which, items = held.positives.entries(rows)
    kept[torch.from_numpy(which), torch.from_numpy(items)] = True
    return scores, kept


def _among(
    view: PersonalView, held: HeldOutLists, rows: Ints, own: Tensor
) -> tuple[Tensor, Tensor]:
    rivals = torch.from_numpy(held.candidates[rows].astype(np.int64))
    lengths = torch.from_numpy(np.diff(held.positives.offsets)[rows])
    real = torch.arange(own.shape[1])[None, :] < lengths[:, None]
    items = torch.cat([own, rivals.clamp(min=0)], dim=1)
    kept = torch.cat([real, rivals >= 0], dim=1)
    scores = view.candidates(torch.from_numpy(rows), items)
    return scores.masked_fill(~kept.to(scores.device), 0.0), kept


def _standing(scores: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """(B, P) how many of each row's scores are above each own one, and how many others equal it."""
    rising = scores.sort(dim=1).values
    below = torch.searchsorted(rising, own)
    up_to = torch.searchsorted(rising, own, right=True)
    return scores.shape[1] - up_to, up_to - below - 1
