"""Which replies the server believes: shapes, types, counts and finite values are checked."""

import torch

from fedrecgel.common.errors import ReplyError
from fedrecgel.common.records import TrainReply
from fedrecgel.common.state import State, Tensors, Update


def check_reply(
    reply: TrainReply, users: int, shared: State, tensors: Tensors, reduce: str
) -> None:
    """Refuse a training reply that cannot be folded in.

    Parameters
    ----------
    users
        How many users the node was asked to train; the sum must be over exactly these.
    shared
        The server's tensors, for shapes and types.

    Raises
    ------
    ReplyError
        With the reason, in few words; reasons are counted.
    """
    expected = [users] if reduce == "sum" else [1] * users
    if [update.users for update in reply.updates] != expected:
        raise ReplyError("wrong number of users")
    for update in reply.updates:
        _check_update(update, shared, tensors)


def _check_update(update: Update, shared: State, tensors: Tensors) -> None:
    if update.rows.keys() | update.dense.keys() != tensors.shared:
        raise ReplyError("missing tensors")
    for name, value in update.dense.items():
        _check_values(value, shared[name].shape, shared[name].dtype)
    for name, (index, rows) in update.rows.items():
        table = shared[name]
        if index.dtype != torch.int64 or index.dim() != 1:
            raise ReplyError("wrong shape or type")
        if len(index) and (
            index[0] < 0 or index[-1] >= len(table) or bool((index[1:] <= index[:-1]).any())
        ):
            raise ReplyError("row numbers out of order or range")
        _check_values(rows, (len(index), *table.shape[1:]), table.dtype)
    if not torch.isfinite(torch.tensor(update.loss)):
        raise ReplyError("not finite")


def _check_values(value: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(value.shape) != tuple(shape) or value.dtype != dtype:
        raise ReplyError("wrong shape or type")
    if not bool(torch.isfinite(value.sum())) and not bool(torch.isfinite(value).all()):
        raise ReplyError("not finite")
