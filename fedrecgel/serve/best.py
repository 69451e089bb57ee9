"""The best items of one user: what `top_k` lists, in fewer calls for a single row."""

import numpy as np
from torch import Tensor

from fedrecgel.common.evaluation import count_nan_rows, refuse_nan
from fedrecgel.common.interactions import Ints


def best_items(scores: Tensor, k: int, excluded: Ints) -> Ints:
    """The ``k`` best items, or all there are, best first, of scores (M,) on the CPU.

    ``excluded`` are not listed. Equal scores are listed by item index, lowest first.

    Raises
    ------
    FedRecError
        When a score is not a number.
    """
    refuse_nan(count_nan_rows(scores[None, :]), 1)
    values = scores.numpy()
    # Real scores stay above those of the excluded items, even where a model returns -inf.
    values = np.maximum(values, np.finfo(values.dtype).min)
    values[excluded] = -np.inf
    last = len(values) - min(k, len(values))
    chosen: Ints = np.flatnonzero(values >= np.partition(values, last)[last])
    chosen = chosen[np.argsort(-values[chosen], kind="stable")][:k]
    best: Ints = chosen[values[chosen] > -np.inf]
    return best
