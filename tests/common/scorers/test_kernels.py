"""Block kernels against plain autograd of `Scorer.score`, one user at a time."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedrecgel.common.scorers.base import Block, Gradients, Scorer
from fedrecgel.common.scorers.dot import DotScorer
from fedrecgel.common.scorers.neumf import NeuMFScorer
from fedrecgel.common.sharpness import ascend
from fedrecgel.common.state import State

SCORERS = (NeuMFScorer(4), NeuMFScorer(32), DotScorer(6))
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
Case = tuple[Block, Tensor, State, Tensor]


def make_case(
    scorer: Scorer, counts: list[int], dtype: torch.dtype = torch.float64, seed: int = 0
) -> Case:
    """A padded block with these numbers of samples, and values of a size that makes ReLU matter."""
    draw = torch.Generator().manual_seed(seed)
    users, longest = len(counts), max(counts)
    real = torch.arange(longest) < torch.tensor(counts)[:, None]
    index = torch.randint(1, 50, (users, longest), generator=draw) * real
    total = torch.rand(users, longest, generator=draw, dtype=torch.float64) * real
    positive = total * (torch.rand(users, longest, generator=draw) < 0.4)
    table = 0.5 * torch.randn(50, scorer.row_size, generator=draw, dtype=torch.float64)
    network = {
        name: torch.randn(shape, generator=draw, dtype=torch.float64) / shape[-1] ** 0.5
        for name, shape in scorer.network_shapes.items()
    }
    vectors = 0.5 * torch.randn(users, scorer.user_size, generator=draw, dtype=torch.float64)
    block = Block(index, positive.to(dtype), total.to(dtype))
    network = {name: value.to(dtype) for name, value in network.items()}
    return block, table[index].to(dtype), network, vectors.to(dtype)


def part(case: Case, chosen: slice, samples: slice = slice(None)) -> Case:
    block, rows, network, users = case
    small = Block(*(x[chosen, samples] for x in (block.index, block.positive, block.total)))
    return small, rows[chosen, samples], network, users[chosen]


def autograd(scorer: Scorer, case: Case, *, shared: bool) -> tuple[list[Tensor], Tensor]:
    """Gradients of one user's loss by [rows, *network] or by [user], and the loss."""
    block, rows, network, users = case
    group = [rows, *network.values()] if shared else [users]
    group = [value.detach().requires_grad_() for value in group]
    if shared:
        rows, network = group[0], dict(zip(network, group[1:], strict=True))
    else:
        users = group[0]
    loss = block.losses(scorer.score(rows, network, users)).sum()
    return list(torch.autograd.grad(loss, group)), loss.detach()


def expected(scorer: Scorer, case: Case, rho_shared: float, rho_private: float) -> Gradients:
    """SAM gradients user by user, from the definition."""
    block, rows, network, users = case
    all_rows, all_users, losses = torch.zeros_like(rows), torch.zeros_like(users), []
    sums = {name: torch.zeros_like(value) for name, value in network.items()}
    for u in range(len(users)):
        count = int((block.total[u] > 0).sum()) or 1
        one = part(case, slice(u, u + 1), slice(0, count))
        shared, loss = autograd(scorer, one, shared=True)
        losses.append(loss)
        if rho_shared > 0:
            moved = ascend([one[1], *network.values()], shared, rho_shared)
            there = dict(zip(network, moved[1:], strict=True))
            shared, _ = autograd(scorer, (one[0], moved[0], there, one[3]), shared=True)
        private, _ = autograd(scorer, one, shared=False)
        if rho_private > 0:
            (moved_user,) = ascend([one[3]], private, rho_private)
            private, _ = autograd(scorer, (*one[:3], moved_user), shared=False)
        all_rows[u, :count], all_users[u] = shared[0][0], private[0][0]
        for name, value in zip(network, shared[1:], strict=True):
            sums[name] += value
    return Gradients(all_rows, sums, all_users, torch.stack(losses))


def computed(scorer: Scorer, case: Case, rho_shared: float, rho_private: float) -> Gradients:
    block, rows, network, users = case
    return scorer.kernel(network).sam_gradients(block, rows, users, rho_shared, rho_private)


def tensors(gradients: Gradients) -> dict[str, Tensor]:
    own = {name: getattr(gradients, name) for name in ("rows", "users", "losses")}
    return own | gradients.network


def assert_close(actual: Gradients, wanted: Gradients, tolerance: float) -> None:
    assert tensors(actual).keys() == tensors(wanted).keys()
    for name, value in tensors(wanted).items():
        got = tensors(actual)[name]
        assert got.shape == value.shape, name
        assert got.dtype == value.dtype, name
        error = (got - value).norm() / value.norm().clamp_min(1e-30)
        assert error <= tolerance, f"{name}: {error:.2e}"


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: f"{s.name}{s.user_size}")
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("radii", [(0.0, 0.0), (0.1, 0.0), (0.0, 0.2), (0.1, 0.2), (1.0, 1.0)])
def test_equals_autograd_user_by_user(
    scorer: Scorer, dtype: torch.dtype, radii: tuple[float, float]
) -> None:
    case = make_case(scorer, [7, 1, 30, 12], dtype)
    wanted = expected(scorer, case, *radii)
    assert_close(computed(scorer, case, *radii), wanted, TOLERANCE[dtype])


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: f"{s.name}{s.user_size}")
def test_long_and_short_users_share_a_block(scorer: Scorer) -> None:
    case = make_case(scorer, [1000, 1, 300])
    assert_close(computed(scorer, case, 0.1, 0.2), expected(scorer, case, 0.1, 0.2), 1e-10)


@settings(max_examples=40, deadline=None)
@given(
    scorer=st.sampled_from([SCORERS[0], SCORERS[2]]),
    counts=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    radii=st.tuples(*[st.sampled_from([0.0, 0.01, 0.5])] * 2),
    seed=st.integers(0, 1000),
)
def test_equals_autograd_for_any_block(
    scorer: Scorer, counts: list[int], radii: tuple[float, float], seed: int
) -> None:
    case = make_case(scorer, counts, seed=seed)
    assert_close(computed(scorer, case, *radii), expected(scorer, case, *radii), 1e-10)


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: f"{s.name}{s.user_size}")
@pytest.mark.parametrize("size", [1, 2, 3])
def test_any_split_into_blocks_gives_the_same_gradients(scorer: Scorer, size: int) -> None:
    counts = [3, 9, 17, 2, 30, 5, 1]
    case = make_case(scorer, counts)
    whole = computed(scorer, case, 0.1, 0.2)
    sums = {name: torch.zeros_like(value) for name, value in case[2].items()}
    for start in range(0, len(counts), size):
        chosen = slice(start, start + size)
        longest = max(counts[chosen])
        piece = computed(scorer, part(case, chosen, slice(0, longest)), 0.1, 0.2)
        for name, value in piece.network.items():
            sums[name] += value
        own = Gradients(whole.rows[chosen, :longest], {}, whole.users[chosen], whole.losses[chosen])
        assert_close(replace(piece, network={}), own, 1e-12)
    assert_close(replace(whole, network=sums), whole, 1e-12)


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: f"{s.name}{s.user_size}")
def test_a_radius_of_zero_gives_the_plain_gradient_bit_for_bit(scorer: Scorer) -> None:
    case = make_case(scorer, [7, 1, 30, 12], torch.float32)
    plain = tensors(computed(scorer, case, 0.0, 0.0))
    shared = tensors(computed(scorer, case, 0.1, 0.0))
    private = tensors(computed(scorer, case, 0.0, 0.1))
    assert torch.equal(shared.pop("users"), plain["users"])
    del private["users"]
    assert all(torch.equal(value, plain[name]) for name, value in private.items())
    assert torch.equal(shared["losses"], plain["losses"])


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: f"{s.name}{s.user_size}")
def test_private_gradient_is_the_plain_one(scorer: Scorer) -> None:
    block, rows, network, users = case = make_case(scorer, [7, 1, 30], torch.float32)
    gradient = scorer.kernel(network).private_gradient(block, rows, users)
    assert torch.equal(gradient, computed(scorer, case, 0.0, 0.0).users)


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: f"{s.name}{s.user_size}")
@pytest.mark.parametrize("radii", [(0.1, 0.2), (0.0, 0.0)])
def test_a_user_with_zero_gradient_is_not_moved(scorer: Scorer, radii: tuple[float, float]) -> None:
    block, rows, network, users = make_case(scorer, [5, 8])
    silent = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    quiet = Block(block.index, block.positive * silent, block.total * silent)
    gradients = computed(scorer, (quiet, rows, network, users), *radii)
    assert all(value.isfinite().all() for value in tensors(gradients).values())
    assert not gradients.rows[0].any()
    assert not gradients.users[0].any()
    assert gradients.losses[0] == 0.0
    only = computed(scorer, part((block, rows, network, users), slice(1, 2)), *radii)
    loud = Gradients(
        gradients.rows[1:], gradients.network, gradients.users[1:], gradients.losses[1:]
    )
    assert_close(loud, only, 1e-12)


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: f"{s.name}{s.user_size}")
def test_everything_at_zero_gives_no_nan(scorer: Scorer) -> None:
    block, rows, network, users = make_case(scorer, [5, 8])
    network = {name: torch.zeros_like(value) for name, value in network.items()}
    gradients = computed(scorer, (block, rows * 0, network, users * 0), 0.1, 0.1)
    assert all(value.isfinite().all() for value in tensors(gradients).values())


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: f"{s.name}{s.user_size}")
def test_padding_adds_nothing(scorer: Scorer) -> None:
    block, rows, network, users = case = make_case(scorer, [5, 20])
    gradients = computed(scorer, case, 0.1, 0.2)
    assert not gradients.rows[0, 5:].any()
    elsewhere = rows.clone()
    elsewhere[0, 5:] = 1e3
    assert_close(computed(scorer, (block, elsewhere, network, users), 0.1, 0.2), gradients, 1e-12)


@pytest.mark.parametrize("scorer", SCORERS, ids=lambda s: f"{s.name}{s.user_size}")
def test_arguments_are_left_as_they_were(scorer: Scorer) -> None:
    case = make_case(scorer, [5, 20])
    block, rows, network, users = case
    inputs = [rows, users, block.positive, block.total, *network.values()]
    before = [value.clone() for value in inputs]
    computed(scorer, case, 0.1, 0.2)
    scorer.kernel(network).private_gradient(block, rows, users)
    assert all(torch.equal(old, new) for old, new in zip(before, inputs, strict=True))
