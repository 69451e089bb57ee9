"""How many Ray actors a machine gets, on 1 to 64 cores and by memory."""

import pytest

from fedrecgel.simulation.resources import (
    GIB,
    STORE,
    free_memory,
    free_shared_memory,
    plan,
    usable_cores,
)

MB = 1_000_000


def actors(cores: int, nodes: int = 1000, memory: float = 256, message: int = MB) -> int:
    room = int(memory * GIB)
    return plan(nodes, message, cores=cores, memory=room, shared_memory=room // 2).actors


@pytest.mark.parametrize(
    ("cores", "expected"), [(1, 1), (2, 2), (8, 8), (32, 32), (64, 32), (128, 32)]
)
def test_an_actor_for_each_core_as_far_as_flower_hands_out_messages(
    cores: int, expected: int
) -> None:
    assert actors(cores) == expected


def test_no_more_actors_than_nodes() -> None:
    assert actors(16, nodes=3) == 3


@pytest.mark.parametrize(("memory", "expected"), [(0.5, 1), (2, 1), (4, 5), (8, 12)])
def test_memory_limits_actors_and_one_is_always_tried(memory: float, expected: int) -> None:
    assert actors(16, memory=memory) == pytest.approx(expected, abs=1)


def test_large_models_get_fewer_actors() -> None:
    assert actors(16, memory=16, message=500 * MB) < actors(16, memory=16)


def test_the_choice_and_its_reason_are_one_line() -> None:
    line = plan(4, MB, cores=2, memory=8 * GIB, shared_memory=4 * GIB).line
    assert line.startswith("Ray: 2 actors of 1 CPU, 1 thread each (limited by cores; 2 cores, 8.0")
    assert "4 nodes" in line
    assert "disk" not in line
    assert "\n" not in line


def test_a_small_shared_memory_is_told_once() -> None:
    """64 MB is what a container has by default."""
    found = plan(4, MB, cores=2, memory=8 * GIB, shared_memory=64 << 20)
    assert "messages go over the disk" in found.line
    assert found.store == STORE[0]


def test_gpus_are_shared_so_that_all_actors_fit() -> None:
    found = plan(8, MB, cores=3, memory=64 * GIB, shared_memory=8 * GIB, gpus=1)
    assert found.actors == 3
    assert found.gpus_each == 0.333
    assert int(1 / found.gpus_each) >= 3


def test_this_machine_has_something() -> None:
    assert usable_cores() >= 1
    assert free_memory() > 0
    assert free_shared_memory() >= 0
