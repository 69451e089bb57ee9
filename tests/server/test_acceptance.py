"""Which replies the server believes."""

from typing import Any

import pytest
import torch

from fedrecgel.common.errors import ReplyError
from fedrecgel.common.requests import TrainReply
from fedrecgel.common.state import Tensors, Update
from fedrecgel.server.acceptance import check_reply

TENSORS = Tensors(frozenset({"items", "w"}), frozenset({"items"}), frozenset({"user"}))
SHARED = {"items": torch.zeros(4, 3), "w": torch.zeros(2, 2)}
NAN, INF = float("nan"), float("inf")


def update(**changes: Any) -> Update:
    index = changes.pop("index", torch.tensor([1, 3]))
    rows = changes.pop("rows", torch.ones(2, 3))
    dense = changes.pop("dense", {"w": torch.ones(2, 2)})
    values = {"users": 2, "loss": 0.5, "touched": 3, **changes}
    return Update({"items": (index, rows)}, dense, **values)


def check(*updates: Update, users: int = 2, reduce: str = "sum") -> None:
    check_reply(TrainReply(list(updates), 1), users, SHARED, TENSORS, reduce)


def with_value(value: float) -> torch.Tensor:
    rows = torch.ones(2, 3)
    rows[1, 2] = value
    return rows


def test_a_good_reply_is_accepted() -> None:
    check(update())
    check(update(index=torch.tensor([0]), rows=torch.ones(1, 3)))
    check(update(index=torch.zeros(0, dtype=torch.int64), rows=torch.ones(0, 3)))
    check(update(users=1), update(users=1), reduce="per-user")
    # Finite numbers whose sum overflows are finite numbers.
    check(update(dense={"w": torch.full((2, 2), 3e38)}))


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ([update(rows=with_value(NAN))], "not finite"),
        ([update(rows=with_value(-INF))], "not finite"),
        ([update(dense={"w": torch.full((2, 2), INF)})], "not finite"),
        ([update(dense={"w": torch.tensor([[INF, -INF], [0, 0]])})], "not finite"),
        ([update(loss=NAN)], "not finite"),
        ([update(loss=INF)], "not finite"),
        ([update(touched=9)], "more rows touched than there are"),
        ([update(dense={"w": torch.ones(4)})], "wrong shape or type"),
        ([update(dense={"w": torch.ones(2, 2, dtype=torch.float64)})], "wrong shape or type"),
        ([update(rows=torch.ones(2, 2))], "wrong shape or type"),
        ([update(rows=torch.ones(3, 3))], "wrong shape or type"),
        ([update(rows=torch.ones(2))], "wrong shape or type"),
        ([update(index=torch.tensor([1, 3], dtype=torch.int32))], "wrong shape or type"),
        ([update(index=torch.tensor([[1, 3]]))], "wrong shape or type"),
        ([update(index=torch.tensor([1.0, 3.0]))], "wrong shape or type"),
        ([update(index=torch.tensor([3, 1]))], "out of order or range"),
        ([update(index=torch.tensor([1, 1]))], "out of order or range"),
        ([update(index=torch.tensor([-1, 1]))], "out of order or range"),
        ([update(index=torch.tensor([1, 4]))], "out of order or range"),
        ([update(dense={})], "missing tensors"),
        ([], "wrong number of users"),
        ([update(users=1)], "wrong number of users"),
        ([update(users=10**9)], "wrong number of users"),
        ([update(users=1), update(users=1)], "wrong number of users"),
    ],
)
def test_a_bad_reply_is_refused_in_few_words(bad: list[Update], reason: str) -> None:
    with pytest.raises(ReplyError, match=reason):
        check(*bad)


@pytest.mark.parametrize("counts", [(2, 0), (3, -1), (1,), (1, 1, 1), (0, 0)])
def test_per_user_updates_are_of_one_user_each(counts: tuple[int, ...]) -> None:
    with pytest.raises(ReplyError, match="wrong number of users"):
        check(*(update(users=users) for users in counts), reduce="per-user")
