"""The examples in docstrings run and print what they say."""

import doctest
import importlib
import pkgutil

import pytest

import fedrecgel

MODULES = [
    module.name
    for module in pkgutil.walk_packages(fedrecgel.__path__, "fedrecgel.")
    if not module.name.endswith("__main__")
]


@pytest.mark.parametrize("name", ["fedrecgel", *MODULES])
def test_docstring_examples_hold(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
