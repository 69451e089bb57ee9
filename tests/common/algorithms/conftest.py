"""Somebody's own algorithm, FedMF by another name; what a test registers is forgotten after it."""

from typing import ClassVar

import pytest

from fedrecgel.common.algorithms import registry
from fedrecgel.common.algorithms.fedmf import FedMF, FedMFConfig
from fedrecgel.common.config import Config


class NinthConfig(FedMFConfig):
    algorithm: ClassVar[str] = "ninth"


class Ninth(FedMF):
    name: ClassVar[str] = "ninth"
    config_class: ClassVar[type[Config]] = NinthConfig


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "ALGORITHMS", dict(registry.ALGORITHMS))
