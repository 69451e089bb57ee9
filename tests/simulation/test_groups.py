import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedrecgel.common.data.dataset import make_dataset
from fedrecgel.common.metrics import RankCounts
from fedrecgel.simulation.groups import FEWEST, by_activity, by_popularity, popularity_groups


def groups_of(counts):
    found = popularity_groups(np.array(counts))
    return {name: np.flatnonzero(mask).tolist() for name, mask in found.items()}


def test_head_middle_and_tail_hold_a_third_of_the_interactions_each():
    # 12 interactions: item 1 has the first third, items 0 and 3 the second.
    assert groups_of([2, 4, 1, 2, 1, 1, 1, 0]) == {
        "head": [1],
        "middle": [0, 3],
        "tail": [2, 4, 5, 6],
        "cold": [7],
    }


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30))
def test_every_item_is_in_one_group_and_equal_items_in_the_same(counts):
    found = popularity_groups(np.array(counts))
    assert np.all(sum(mask.astype(int) for mask in found.values()) == 1)
    for mask in found.values():
        inside = {c for c, m in zip(counts, mask, strict=True) if m}
        assert not inside & {c for c, m in zip(counts, mask, strict=True) if not m}
    assert np.array_equal(found["cold"], np.array(counts) == 0)


def data_of(lengths, test):
    rows = [list(range(n)) for n in lengths]
    return make_dataset(rows, validation=[-1] * len(rows), test=test, num_items=40)


def ranks_of(greater):
    counts = RankCounts(greater, np.zeros(len(greater)))
    return {"model": {"sampled": counts, "full": counts}}


def test_metrics_by_group_of_the_held_out_item():  # U054: cold items apart
    data = data_of([3] * 12, [2] * 6 + [39] * 6)  # item 2 is known to all, item 39 to nobody
    found = by_popularity(data, ranks_of([0] * 6 + [20] * 6), np.asarray(data.test_items))
    assert found["cold"]["items"] == 37
    assert found["cold"]["evaluated"] == 6
    assert found["cold"]["model"]["full"]["hr@10"]["value"] == 0
    assert found["head"]["model"]["full"]["hr@10"]["value"] == 1
    assert sum(part["evaluated"] for part in found.values()) == 12


def test_metrics_by_activity_cut_the_users_in_thirds():
    data = data_of([2] * 5 + [6] * 5 + [20] * 5, [39] * 15)
    found = by_activity(data, ranks_of([0] * 5 + [9] * 5 + [20] * 5), np.arange(15))
    assert [found[name]["evaluated"] for name in ("least", "medium", "most")] == [5, 5, 5]
    assert (found["least"]["below"], found["medium"]["below"], found["most"]["from"]) == (3, 7, 7)
    values = [found[n]["model"]["full"]["hr@10"]["value"] for n in ("least", "medium", "most")]
    assert values == [1, 1, 0]


def test_users_who_are_all_alike_are_one_group():
    data = data_of([4] * 8, [39] * 8)
    found = by_activity(data, ranks_of([0] * 8), np.arange(8))
    assert [part["evaluated"] for part in found.values()] == [8, 0, 0]
    assert by_activity(data, ranks_of([]), np.arange(0)) == {}


def test_a_group_of_very_few_users_shows_only_how_many():
    few = FEWEST - 1
    data = data_of([3] * 10, [2] * (10 - few) + [39] * few)
    found = by_popularity(data, ranks_of([0] * 10), np.asarray(data.test_items))
    assert found["cold"] == {"items": 37, "evaluated": few}
