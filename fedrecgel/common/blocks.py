"""Cutting a cohort into padded blocks of users with similar numbers of samples."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fedrecgel.common.interactions import Ints
from fedrecgel.common.samples import Samples
from fedrecgel.common.scorers.base import Block


def cut_blocks(
    samples: Samples, size: int, dtype: torch.dtype, device: torch.device
) -> Iterator[tuple[Ints, Ints, Block]]:
    """Blocks of at most ``size`` padded samples (a single larger user is a block of its own).

    Users are taken in order of their sample count, so that padding is small.

    Yields
    ------
    users : (U,) positions in ``samples``
    place : (U, S) position of each sample in the flat arrays; 0 in the padding
    block
        Its ``index`` is the item index.
    """
    counts = samples.counts
    order = np.argsort(counts, kind="stable")
    end = len(order)
    while end > 0:
        longest = max(1, int(counts[order[end - 1]]))
        users = order[max(0, end - max(1, size // longest)) : end]
        end -= len(users)
        column = np.arange(longest)
        valid = column < counts[users][:, None]
        place = np.where(valid, samples.offsets[users][:, None] + column, 0)
        yield (
            users,
            place,
            Block(
                torch.from_numpy(np.where(valid, samples.items[place], 0)).to(device),
                _weights(samples.positive[place] * valid, dtype, device),
                _weights(samples.total[place] * valid, dtype, device),
            ),
        )


def _weights(values: np.ndarray, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.from_numpy(values).to(device, dtype)
