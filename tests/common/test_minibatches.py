"""Minibatches of many users: every sample once an epoch, whoever is trained beside whom."""

import numpy as np
import pytest
import torch

from fedrecgel.common.hashing import mix, user_keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.minibatches import Minibatches, put, take

CPU = torch.device("cpu")


def interactions(users: int = 9, num_items: int = 40) -> Interactions:
    """Users with 1 to 25 of 40 items; user 2 has an item twice."""
    rows = [
        np.argsort(mix("rows", u, np.arange(num_items)))[: 1 + 3 * u].tolist() for u in range(users)
    ]
    rows[2] += rows[2][:1]
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return Interactions(np.concatenate(rows), offsets, user_keys(map(str, range(users))), num_items)


def minibatches(data: Interactions, size: int, epochs: int = 1, **more: bool) -> Minibatches:
    return Minibatches(data, num_negatives=3, size=size, epochs=epochs, seed=5, round=2, **more)


def passes(
    data: Interactions, size: int, rows: int = 0, **more: bool
) -> dict[int, list[list[tuple[int, float, float]]]]:
    """By user's key: minibatches of (item, positive, total), of two epochs."""
    found: dict[int, list[list[tuple[int, float, float]]]] = {}
    for group in minibatches(data, size, epochs=2, **more).groups(rows, torch.float64, CPU):
        items = group.items.flatten()
        for block in group.blocks():
            for user, key in enumerate(data.keys[group.users].tolist()):
                there = block.total[user] > 0
                if there.any():
                    columns = (items[block.index[user]], block.positive[user], block.total[user])
                    rows_of = zip(*(c[there].tolist() for c in columns), strict=True)
                    found.setdefault(key, []).append(list(rows_of))
    return found


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_an_epoch_passes_every_sample_once(size: int) -> None:
    data = interactions()
    found = passes(data, size)
    for user in range(data.num_users):
        positives = data.items[data.offsets[user] : data.offsets[user + 1]]
        samples = 4 * len(positives)
        batches = found[int(data.keys[user])]
        each = -(-samples // size)
        assert len(batches) == 2 * each
        for epoch in (batches[:each], batches[each:]):
            sizes = [size] * (each - 1) + [samples - size * (each - 1)]
            wanted = np.bincount(positives, minlength=data.num_items)
            seen, count = np.zeros(data.num_items), 0.0
            for batch, n in zip(epoch, sizes, strict=True):
                assert len({item for item, _, _ in batch}) == len(batch)
                assert sum(total for _, _, total in batch) == pytest.approx(1.0)
                for item, positive, total in batch:
                    seen[item] += positive * n
                    count += total * n
            np.testing.assert_allclose(seen, wanted, atol=1e-9)
            assert count == pytest.approx(samples)


def test_epochs_differ_in_order_and_in_nothing_else() -> None:
    data = interactions()
    batches = passes(data, 7)[int(data.keys[8])]
    half = len(batches) // 2
    assert batches[:half] != batches[half:]
    first, second = (
        sorted({item for batch in part for item, _, _ in batch})
        for part in (batches[:half], batches[half:])
    )
    assert first == second


@pytest.mark.parametrize("rows", [1, 60, 10_000])
@pytest.mark.parametrize("whole", [False, True])
def test_minibatches_do_not_depend_on_the_company(rows: int, whole: bool) -> None:
    data = interactions()
    together = passes(data, 7, rows, whole=whole)
    assert together == passes(data, 7)
    alone = passes(data.take(np.array([6])), 7, whole=whole)
    assert alone[int(data.keys[6])] == together[int(data.keys[6])]


def test_groups_hold_the_rows_that_their_users_touch() -> None:
    data = interactions()
    batches = minibatches(data, 7)
    users = []
    for group in batches.groups(60, torch.float64, CPU):
        assert len(group.users) == 1 or group.items.numel() <= 60
        for place, user in enumerate(group.users):
            touched = batches.items[batches.offsets[user] : batches.offsets[user + 1]]
            assert group.items[place][group.valid[place]].tolist() == touched.tolist()
            assert not group.valid[place, -1]
            users.append(int(user))
    assert sorted(users) == list(range(9))


def test_what_is_put_back_is_what_was_taken() -> None:
    (group,) = minibatches(interactions(), 1000).groups(10_000, torch.float64, CPU)
    rows = torch.arange(group.items.numel() * 2.0, dtype=torch.float64).view(*group.items.shape, 2)
    before = rows.clone()
    (block,) = group.blocks()
    some = take(rows, block)
    put(rows, block, some)
    assert torch.equal(rows, before)
    put(rows, block, some + block.total.unsqueeze(-1))
    changed = (rows != before).any(-1)
    assert torch.equal(changed, group.valid)


def test_what_else_is_held_of_a_user_makes_groups_smaller() -> None:
    """Two users of 25 columns fit in 60 rows, but not with 16 rows more for each."""
    widths = {}
    for beside in (0, 16):
        groups = minibatches(interactions(), 1000).groups(60, torch.float64, CPU, beside)
        widths[beside] = [tuple(group.items.shape) for group in groups]
    assert widths[0][5:] == [(1, 31), (2, 25), (1, 5)]
    assert widths[16][5:] == [(1, 31), (1, 25), (1, 17), (1, 5)]
