"""Named tensors, sums of updates, and memory that is shared and not copied."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedrecgel.common.errors import ConfigError
from fedrecgel.common.optimizers import SERVER_OPTIMIZERS, adam_state, adam_step, server_optimizer
from fedrecgel.common.sharpness import ascend, ascent_scale
from fedrecgel.common.state import Update, resolve_device, stack_users, take_users, to_tensor


def update(rows: dict[int, float], dense: float, users: int = 1) -> Update:
    index = torch.tensor(sorted(rows), dtype=torch.int64)
    values = torch.tensor([[rows[i]] for i in sorted(rows)]).reshape(len(rows), 1)
    return Update({"items": (index, values)}, {"w": torch.tensor([dense])}, users, dense, len(rows))


def test_rows_add_where_they_meet_and_join_where_they_do_not() -> None:
    total = Update.total([update({1: 1.0, 3: 2.0}, 10.0), update({0: 5.0, 3: 7.0}, 1.0, users=4)])
    index, values = total.rows["items"]
    assert index.tolist() == [0, 1, 3]
    assert values[:, 0].tolist() == [5.0, 1.0, 9.0]
    assert total.dense["w"].tolist() == [11.0]
    assert (total.users, total.loss, total.touched) == (5, 11.0, 4)


@given(
    st.lists(
        st.dictionaries(st.integers(0, 5), st.integers(-9, 9).map(float), max_size=6),
        min_size=1,
        max_size=5,
    )
)
def test_a_total_is_the_sum_of_dense_tables(parts: list[dict[int, float]]) -> None:
    total = Update.total([update(rows, 1.0) for rows in parts])
    table = torch.zeros(6)
    index, values = total.rows["items"]
    table[index] = values[:, 0]
    assert table.tolist() == [sum(rows.get(i, 0.0) for rows in parts) for i in range(6)]
    assert index.tolist() == sorted({i for rows in parts for i in rows})
    assert total.users == len(parts)


def test_total_does_not_change_its_parts() -> None:
    one, two = update({1: 1.0}, 1.0), update({1: 1.0}, 1.0)
    Update.total([one, two])
    assert one.rows["items"][1].item() == 1.0
    assert two.dense["w"].item() == 1.0


def test_users_stack_and_are_taken_apart_again() -> None:
    states = [{"user": torch.full((2,), float(u)), "step": torch.tensor(u)} for u in range(3)]
    stacked = stack_users(states)
    assert stacked["user"].shape == (3, 2)
    assert stacked["step"].tolist() == [0, 1, 2]
    assert take_users(stacked, torch.tensor([2, 0]))["step"].tolist() == [2, 0]


def test_a_read_only_array_becomes_a_tensor_without_a_copy() -> None:
    array = np.arange(6.0).reshape(2, 3)
    array.flags.writeable = False
    tensor = to_tensor(array, torch.device("cpu"))
    assert tensor.tolist() == array.tolist()
    assert tensor.data_ptr() == array.__array_interface__["data"][0]
    assert not array.flags.writeable


def test_a_read_only_view_stays_valid_when_its_owner_is_gone() -> None:
    tensor = to_tensor(np.frombuffer(np.arange(1000.0).tobytes()), torch.device("cpu"))
    for _ in range(10):
        np.ones(1000).tobytes()
    assert tensor.tolist() == list(range(1000))


def test_devices_by_name() -> None:
    assert resolve_device("cpu").type == "cpu"
    assert resolve_device("auto").type in ("cpu", "cuda")
    with pytest.raises(ConfigError, match="choose from cpu, cuda, auto"):
        resolve_device("tpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said_so() -> None:
    with pytest.raises(ConfigError, match="torch sees no GPU; use cpu or auto"):
        resolve_device("cuda")


# --- sharpness -----------------------------------------------------------------------------------


def test_the_ascent_has_the_length_of_the_radius_over_the_whole_group() -> None:
    values, gradients = (
        [torch.zeros(2), torch.zeros(1)],
        [torch.tensor([3.0, 0.0]), torch.tensor([4.0])],
    )
    moved = ascend(values, gradients, 0.5)
    assert moved[0].tolist() == pytest.approx([0.3, 0.0])
    assert moved[1].tolist() == pytest.approx([0.4])
    assert values[0].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_a_zero_gradient_gives_a_zero_perturbation(dtype: torch.dtype) -> None:
    value = torch.ones(3, dtype=dtype)
    assert torch.equal(ascend([value], [torch.zeros_like(value)], 0.1)[0], value)
    assert ascent_scale(torch.zeros(2, dtype=dtype), 0.1).tolist() == [0.0, 0.0]


# --- optimisers ----------------------------------------------------------------------------------


def test_private_adam_is_torchs_adam_for_each_user_with_a_count_of_their_own() -> None:
    draw = torch.Generator().manual_seed(0)
    values = torch.randn(2, 3, generator=draw, dtype=torch.float64)
    state = adam_state(values)
    leaves = [row.clone().requires_grad_() for row in values]
    optimizers = [torch.optim.Adam([leaf], lr=0.1) for leaf in leaves]
    for users in ([0, 1], [1], [0, 1], [1], [1]):
        gradient = torch.randn(len(users), 3, generator=draw, dtype=torch.float64)
        some = take_users(state, torch.tensor(users))
        stepped, new = adam_step(values[users], gradient, some, 0.1)
        values[users] = stepped
        for name, value in new.items():
            state[name][users] = value
        for row, user in enumerate(users):
            leaves[user].grad = gradient[row]
            optimizers[user].step()
    assert state["adam_step"].tolist() == [2, 5]
    for user in range(2):
        assert torch.allclose(values[user], leaves[user], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_every_server_optimizer_can_be_made_and_steps(name: str) -> None:
    value = torch.ones(3)
    optimizer = server_optimizer(name, [value], 0.1)
    value.grad = torch.ones(3)
    before = value.clone()
    optimizer.step()
    assert (value < before).all()


def test_an_unknown_server_optimizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="choose from adam, sgd"):
        server_optimizer("lbfgs", [torch.ones(1)], 0.1)
