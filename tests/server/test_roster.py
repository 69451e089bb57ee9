"""Who takes part: numbering by site and slot, cohorts, and refusals at the start."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrecgel.common.errors import FederationError
from fedrecgel.common.greeting import Hello
from fedrecgel.server.roster import Roster, round_half_up


def hello(site: str, users: int, catalogue: str = "hash", num_items: int = 9) -> Hello:
    return Hello(site, users, num_items, catalogue, users // 2)


def roster(sizes: dict[str, int]) -> Roster:
    return Roster({7 * i + 3: hello(site, users) for i, (site, users) in enumerate(sizes.items())})


def test_users_are_numbered_by_site_and_slot() -> None:
    found = roster({"b": 2, "a": 3, "c": 1})
    assert [(m.site, m.first, m.last) for m in found.members] == [
        ("a", 0, 3),
        ("b", 3, 5),
        ("c", 5, 6),
    ]
    assert [m.node_id for m in found.members] == [10, 3, 17]
    assert (found.num_users, found.num_items, found.validation_users) == (6, 9, 2)
    assert found.accepted.tolist() == [0] * 6


def test_the_numbering_depends_on_neither_node_ids_nor_arrival() -> None:
    answers = {"a": 3, "b": 2, "c": 1}
    one = Roster({id: hello(site, n) for id, (site, n) in enumerate(answers.items())})
    two = Roster(
        {99 - id: hello(site, n) for id, (site, n) in enumerate(reversed(answers.items()))}
    )
    assert [(m.site, m.first) for m in one.members] == [(m.site, m.first) for m in two.members]


def test_a_site_without_users_takes_part_with_none() -> None:
    found = roster({"a": 2, "b": 0, "c": 1})
    assert found.num_users == 3
    assert [m.site for m, _ in found.split(np.arange(3))] == ["a", "c"]


@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6).filter(any),
    seed=st.integers(0, 2**31 - 1),
    round=st.integers(1, 1000),
    fraction=st.floats(1e-9, 1),
)
def test_cohorts_are_sorted_distinct_and_of_the_right_size(
    sizes: list[int], seed: int, round: int, fraction: float
) -> None:
    found = roster({f"s{i}": size for i, size in enumerate(sizes)})
    cohort = found.cohort(seed, round, fraction)
    assert len(cohort) == max(1, round_half_up(fraction * found.num_users))
    assert (np.diff(cohort) > 0).all()
    assert 0 <= cohort[0] <= cohort[-1] < found.num_users
    # How the users are spread over nodes does not change who is chosen.
    assert (
        cohort.tolist() == roster({"all": found.num_users}).cohort(seed, round, fraction).tolist()
    )
    parts = found.split(cohort)
    assert np.concatenate([users for _, users in parts]).tolist() == cohort.tolist()
    for member, users in parts:
        assert len(users)
        assert member.first <= users[0] <= users[-1] < member.last


def test_rounds_and_seeds_choose_others() -> None:
    found = roster({"a": 100})
    cohorts = {tuple(found.cohort(seed, round, 0.1)) for seed in (0, 1) for round in (1, 2, 3)}
    assert len(cohorts) == 6
    assert tuple(found.cohort(0, 1, 0.1)) in cohorts


def test_every_user_is_chosen_equally_often() -> None:
    found = roster({"a": 20})
    counts = np.zeros(20)
    for round in range(2000):
        counts[found.cohort(0, round, 0.25)] += 1
    assert abs(counts - 500).max() < 5 * np.sqrt(500 * 0.75)


@pytest.mark.parametrize(("value", "whole"), [(0.5, 1), (1.5, 2), (2.5, 3), (2.49, 2), (0.0, 0)])
def test_halves_are_rounded_up(value: float, whole: int) -> None:
    assert round_half_up(value) == whole


@pytest.mark.parametrize(
    ("hellos", "message"),
    [
        ({}, "no node hosts a user"),
        ({1: hello("a", 0), 2: hello("b", 0)}, "no node hosts a user"),
        ({1: hello("a", 1), 2: hello("a", 2)}, "two nodes call themselves 'a'"),
        ({1: hello("a", 1), 2: hello("b", 2, "other")}, "2 different catalogues"),
        ({1: hello("a", 1), 2: hello("b", 2, num_items=8)}, "2 different catalogues"),
        (
            {1: replace(hello("a", 1), parts=2), 2: replace(hello("b", 2), parts=3)},
            "num-partitions=2 and 3",
        ),
    ],
)
def test_federations_that_cannot_work_are_refused(hellos: dict[int, Hello], message: str) -> None:
    with pytest.raises(FederationError, match=message):
        Roster(hellos)
