"""Mistakes in an algorithm of one's own are said where they are; nothing private leaves by one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedrecgel.client.app import answered
from fedrecgel.common.algorithms.registry import make_algorithm, register
from fedrecgel.common.config import Config, setting_help
from fedrecgel.common.errors import ConfigError, FederationError
from fedrecgel.common.hashing import Keys
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.state import Tensors
from fedrecgel.simulation.grid import InProcessGrid

from .conftest import Ninth, NinthConfig

ITEMS, USER, TABLE = frozenset({"items"}), frozenset({"user"}), frozenset({"table"})


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"shared": ITEMS | USER, "private": USER}, "'user' is declared shared and private"),
        ({"addressed": USER}, "'user' is declared private and addressed"),
        ({"addressed": ITEMS}, "'items' is declared shared and addressed"),
        ({"uploaded": TABLE}, "'table' is declared uploaded but not private"),
        ({"uploaded": ITEMS}, "'items' is declared uploaded but not private"),
        ({"announced": USER}, "'user' is declared announced but not shared"),
        ({"shared": "items"}, "declared shared are a set of names, not 'items'"),
    ],
)
def test_declarations_that_exclude_each_other_are_refused(
    declared: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Tensors(**{"shared": ITEMS, "item_rows": ITEMS, "private": USER, **declared})


def test_who_uploads_a_private_tensor_cannot_say_that_the_server_sees_sums() -> None:
    @register
    class Uploading(Ninth):
        def __init__(self, config: Any, num_items: int) -> None:
            super().__init__(config, num_items)
            self.tensors = Tensors(shared=ITEMS, item_rows=ITEMS, private=USER, uploaded=USER)

    with pytest.raises(ConfigError, match="ninth uploads private 'user', but its reduce is 'sum'"):
        make_algorithm(NinthConfig(), 5)


def test_an_algorithm_that_declares_nothing_is_refused() -> None:
    @register
    class Silent(Ninth):
        def __init__(self, config: Any, num_items: int) -> None:
            super().__init__(config, num_items)
            del self.tensors

    with pytest.raises(ConfigError, match="ninth declares no tensors"):
        make_algorithm(NinthConfig(), 5)


def trained(change: Any) -> None:
    """Two users' round, one at a time, with a ``local_update`` changed by ``change``."""

    @register
    class Changed(Ninth):
        def local_update(self, download: Any, private: Any, data: Any, round: int) -> Any:
            update, state = super().local_update(download, private, data, round)
            return change(download, update, state)

    algorithm = make_algorithm(NinthConfig(engine="loop"), 5)
    keys: Keys = np.arange(2, dtype=np.uint64)
    data = Interactions(np.array([0, 1], np.int32), np.array([0, 1, 2]), keys, 5)
    download = algorithm.download(algorithm.init_server(), np.arange(2))  # type: ignore[arg-type]
    algorithm.update_users(download, algorithm.init_private(keys), data, 1)


def test_a_round_of_an_unchanged_algorithm_is_no_mistake() -> None:
    trained(lambda download, update, state: (update, state))


def test_private_tensors_that_come_back_under_other_names_are_refused() -> None:
    with pytest.raises(FederationError, match=r"ninth returns private \['moment', 'user'\], init"):
        trained(lambda _, update, state: (update, {**state, "moment": state["user"]}))
    with pytest.raises(FederationError, match=r"returns private \[\], init_private \['user'\]"):
        trained(lambda _, update, state: (update, {}))


@pytest.mark.parametrize("made", [None, "update", ("update", "state", "loss"), ("state", "update")])
def test_what_else_local_update_returns_is_refused(made: Any) -> None:
    def change(_: Any, update: Any, state: Any) -> Any:
        named = {"update": update, "state": state, "loss": 0.5}
        return tuple(map(named.get, made)) if isinstance(made, tuple) else named.get(made)

    with pytest.raises(
        FederationError, match="ninth must return an Update and the new private state"
    ):
        trained(change)


def test_a_download_that_is_changed_in_place_is_refused() -> None:
    def spoil(download: Any, update: Any, state: Any) -> Any:
        download["items"] += 1.0
        return update, state

    with pytest.raises(
        FederationError, match="local_update of ninth changes its download in place"
    ):
        trained(spoil)


def test_a_field_that_is_no_setting_is_named() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Plain(Config):
        rate: float = 0.5

    with pytest.raises(ConfigError, match=r"setting 'rate' is not made by .*setting\(\.\.\.\)"):
        Plain()
    with pytest.raises(ConfigError, match="setting 'rate' is not made by"):
        setting_help(Plain)


@pytest.mark.parametrize(
    ("defect", "said"),
    [
        (lambda: {}["user"], "KeyError: 'user'"),  # type: ignore[typeddict-item]
        (lambda: torch.autograd.grad(torch.ones(1), torch.ones(1)), "RuntimeError: element 0 of"),
    ],
)
def test_the_last_line_of_a_defects_reply_says_where_it_was(
    defect: Callable[[], Any], said: str
) -> None:
    @answered
    def handler(message: Message, context: Context) -> Message:
        defect()
        return message

    grid = InProcessGrid(ClientApp(), [{}], {})
    message = grid.create_message(RecordDict(), "train", 2, "")
    last = handler(message, Context(1, 1, {}, RecordDict(), {})).error.reason.splitlines()[-1]
    assert last.startswith(said)
    assert "(test_mistakes.py, line " in last
    assert last.endswith(", in <lambda>)")
