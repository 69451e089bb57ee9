"""Algorithms of others: registered in the program, or declared by an installed package."""

import importlib.metadata

import pytest

from fedrecgel.common.algorithms import registry
from fedrecgel.common.algorithms.fedmf import FedMFConfig
from fedrecgel.common.algorithms.registry import algorithm_class, register
from fedrecgel.common.errors import ConfigError

from .conftest import Ninth


def test_a_registered_algorithm_is_found_by_name() -> None:
    assert register(Ninth) is Ninth
    assert algorithm_class("ninth") is Ninth
    register(Ninth)  # a module may be imported twice


def test_a_class_that_is_defined_again_takes_its_own_place() -> None:
    def define() -> type[Ninth]:
        class Notebook(Ninth):
            pass

        return register(Notebook)

    first, second = define(), define()
    assert first is not second
    assert algorithm_class("ninth") is second


def test_an_installed_packages_algorithm_is_found_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint("ninth", f"{__name__}:Ninth", registry.GROUP)
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda self: Ninth)
    asked: list[dict[str, str]] = []

    def entry_points(**wanted: str) -> list[importlib.metadata.EntryPoint]:
        asked.append(wanted)
        return [point] if wanted["name"] == "ninth" else []

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    assert algorithm_class("ninth") is Ninth
    assert asked == [{"group": "fedrecgel.algorithms", "name": "ninth"}]
    with pytest.raises(ConfigError, match="unknown algorithm 'ninht'; did you mean 'ninth'"):
        algorithm_class("ninht")


def test_a_name_is_one_algorithms() -> None:
    taken = type("Other", (Ninth,), {"name": "fedmf", "config_class": FedMFConfig})
    with pytest.raises(ConfigError, match="there is an algorithm 'fedmf' already"):
        register(taken)


def test_config_and_algorithm_have_the_same_name() -> None:
    other = type("Other", (Ninth,), {"name": "tenth"})
    with pytest.raises(ConfigError, match="called 'tenth' but its config 'ninth'"):
        register(other)
