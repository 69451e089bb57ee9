"""Which replies the server believes: shapes, types, counts and finite values are checked."""

import math
import statistics
from collections import deque
from collections.abc import Callable, Iterable, Iterator

import torch

from fedrecgel.common.errors import ReplyError
from fedrecgel.common.requests import TrainReply
from fedrecgel.common.state import State, Tensors, Update


def check_reply(
    reply: TrainReply, users: int, template: State, tensors: Tensors, reduce: str
) -> None:
    """Refuse a training reply that cannot be folded in.

    Parameters
    ----------
    users
        How many users the node was asked to train; the sum must be over exactly these.
    template
        `Algorithm.update_template`, for shapes and types.

    Raises
    ------
    ReplyError
        With the reason, in few words; reasons are counted.
    """
    expected = [users] if reduce == "sum" else [1] * users
    if [update.users for update in reply.updates] != expected:
        raise ReplyError("wrong number of users")
    for update in reply.updates:
        _check_update(update, template, tensors)


def _check_update(update: Update, template: State, tensors: Tensors) -> None:
    if update.rows.keys() | update.dense.keys() != tensors.sent:
        raise ReplyError("missing tensors")
    for name, value in update.dense.items():
        _check_values(value, template[name].shape, template[name].dtype)
    for name, (index, rows) in update.rows.items():
        table = template[name]
        if index.dtype != torch.int64 or index.dim() != 1:
            raise ReplyError("wrong shape or type")
        if len(index) and (
            index[0] < 0 or index[-1] >= len(table) or bool((index[1:] <= index[:-1]).any())
        ):
            raise ReplyError("row numbers out of order or range")
        _check_values(rows, (len(index), *table.shape[1:]), table.dtype)
    if not math.isfinite(update.loss):
        raise ReplyError("not finite")
    if update.touched > update.users * sum(len(template[name]) for name in tensors.item_rows):
        raise ReplyError("more rows touched than there are")


def _check_values(value: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(value.shape) != tuple(shape) or value.dtype != dtype:
        raise ReplyError("wrong shape or type")
    if not bool(torch.isfinite(value.sum())) and not bool(torch.isfinite(value).all()):
        raise ReplyError("not finite")


FEWEST_NORMS = 3
"""Norms that a median needs to mean anything."""


def norm_per_user(update: Update) -> float:
    """L2 norm of an update over all its tensors, divided by its users."""
    values = [rows for _, rows in update.rows.values()] + list(update.dense.values())
    return math.hypot(*map(_norm, values)) / max(1, update.users)


def _norm(values: torch.Tensor) -> float:
    norm = float(torch.linalg.vector_norm(values))
    if math.isfinite(norm):
        return norm
    # Squares of finite float32 numbers may overflow where their norm does not.
    return float(torch.linalg.vector_norm(values, dtype=torch.float64))


NORM_REASON = "norm far beyond the median"
NORM_ADVICE = "; where all are refused training has diverged: lower its learning rates"


class NormGuard:
    """Refuses updates whose norm is far beyond what is usual.

    The limit is ``factor`` times the median of the norms accepted so far in the run. Before there
    are any, the replies of the round are held until all are there and compared with each other.
    Fewer than three are not judged.

    Parameters
    ----------
    norms
        Accepted norms per user; new ones are added.
    factor
        Setting ``norm-limit``; 0 lets everything through.
    """

    def __init__(self, norms: deque[float], factor: float) -> None:
        self._norms = norms
        self._factor = factor

    def filter(
        self,
        replies: Iterable[tuple[int, list[Update]]],
        refuse: Callable[[int, str], None],
    ) -> Iterator[tuple[int, list[Update]]]:
        """Pass good replies on; call ``refuse`` with node and reason for the others."""
        usual = list(self._norms)
        if self._factor and len(usual) < FEWEST_NORMS:
            replies = list(replies)
            usual += [norm_per_user(update) for _, updates in replies for update in updates]
        judged = self._factor > 0 and len(usual) >= FEWEST_NORMS
        limit = self._factor * statistics.median(usual) if judged else float("inf")
        for node_id, updates in replies:
            norms = [norm_per_user(update) for update in updates]
            # A median of 0 says that nothing is learned, not that everything is suspicious.
            if max(norms) > limit > 0:
                refuse(node_id, NORM_REASON)
                continue
            self._norms.extend(norms)
            yield node_id, updates
