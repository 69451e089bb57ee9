"""What a node gets, and what the server's state is on disk."""

import numpy as np
import pytest
import torch

from fedrecgel.common.algorithms.base import Download, ServerState
from fedrecgel.common.algorithms.registry import ALGORITHMS, make_algorithm, make_config
from fedrecgel.common.hashing import uniform_cohort

SHARED = {"items": torch.zeros(3, 2)}
TABLES = {"table": torch.arange(4.0)[:, None]}


def test_without_numbers_each_user_has_the_row_at_their_place() -> None:
    download = Download(SHARED, TABLES)
    assert [float(download.user(place)["table"]) for place in range(4)] == [0, 1, 2, 3]
    assert download.rows(4).tolist() == [0, 1, 2, 3]


def test_users_may_share_a_row_or_have_none() -> None:
    download = Download(SHARED, TABLES, torch.tensor([2, -1, 2]))
    assert float(download.user(0)["table"]) == float(download.user(2)["table"]) == 2
    assert download.user(1).keys() == {"items"}


def test_some_users_take_no_more_rows_than_they_need() -> None:
    download = Download(SHARED, TABLES, torch.tensor([2, -1, 2, 0]))
    some = download.take(torch.tensor([3, 1, 0]))
    assert some.addressed["table"].flatten().tolist() == [0, 2]
    assert some.rows(3).tolist() == [0, -1, 1]
    plain = Download(SHARED, TABLES).take(torch.tensor([3, 1]))
    assert [float(plain.user(place)["table"]) for place in range(2)] == [3, 1]
    assert Download(SHARED).take(torch.tensor([1])).addressed == {}
    assert Download(SHARED).rows(2).tolist() == [-1, -1]


def test_the_servers_state_is_the_same_after_flattening() -> None:
    one = torch.ones(2)
    state = ServerState({"items": one}, {"3": {"group": 2 * one}}, {"labels": 3 * one})
    flat = state.to_flat()
    assert set(flat) == {"shared/items", "addressed/3/group", "auxiliary/labels"}
    again = ServerState.from_flat({**flat, "accepted": one})
    assert again.to_flat().keys() == flat.keys()
    assert float(again.addressed["3"]["group"].sum()) == 4


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_cohort_is_a_function_of_the_round_alone(name: str) -> None:
    algorithm = make_algorithm(make_config(name), 5)
    server, users = algorithm.init_server(), np.arange(100, 200)
    chosen = [algorithm.cohort(server, users, 10, round) for round in (1, 1, 2)]
    assert chosen[0].tolist() == chosen[1].tolist() != chosen[2].tolist()
    assert len(set(chosen[0].tolist())) == 10
    assert set(chosen[0].tolist()) <= set(users.tolist())
    assert algorithm.cohort(server, users, 100, 1).tolist() == users.tolist()
    assert algorithm.cohort(server, users, 10, 1, attempt=1).tolist() != chosen[0].tolist()


def test_a_uniform_cohort_depends_on_who_is_there() -> None:
    everyone = uniform_cohort(np.arange(50), 10, 0, 1, 0)
    without = uniform_cohort(np.setdiff1d(np.arange(50), everyone[:1]), 10, 0, 1, 0)
    # Each of the others keeps their place: one steps in for who is away.
    assert len(np.intersect1d(everyone, without)) == 9
