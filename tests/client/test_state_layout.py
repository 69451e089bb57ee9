"""Rows of bytes: whatever goes in comes out."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecgel.client.state_layout import StateLayout


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    shapes=st.dictionaries(
        st.sampled_from("abc"),
        st.tuples(
            st.lists(st.integers(0, 3), max_size=3),
            st.sampled_from([torch.float32, torch.float64, torch.int64, torch.bool]),
        ),
    ),
    users=st.integers(0, 3),
)
def test_states_of_any_shape_and_type_come_back_bitwise(
    shapes: dict[str, tuple[list[int], torch.dtype]], users: int
) -> None:
    state = {
        name: (torch.arange(max(1, users) * int(np.prod(shape))) % 5)
        .to(kind)[: users * int(np.prod(shape))]
        .reshape(users, *shape)
        for name, (shape, kind) in shapes.items()
    }
    layout = StateLayout({n: (tuple(v.shape[1:]), v.numpy().dtype.str) for n, v in state.items()})
    assert StateLayout.from_text(layout.to_text()) == layout
    found = layout.unpack(layout.pack(state, users))
    assert found.keys() == state.keys()
    for name, value in state.items():
        assert found[name].dtype == value.dtype
        assert torch.equal(found[name], value)
