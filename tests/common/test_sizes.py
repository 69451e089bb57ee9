"""Message sizes, told before a run and refused beyond the limit."""

from pathlib import Path

import pytest

from fedrecgel import make_config, simulate
from fedrecgel.common.algorithms.registry import make_algorithm
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.records import initial_arrays
from fedrecgel.common.sizes import message_sizes


@pytest.mark.parametrize("scorer", ["dot", "neumf"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_forecast_is_what_the_tensors_take(scorer: str, dtype: str) -> None:
    config = make_config("fedrecgel", {"scorer": scorer, "dtype": dtype, "embedding-dim": 8})
    shared = make_algorithm(config, 50).init_server().shared
    exact = sum(value.numel() * value.element_size() for value in shared.values())
    assert message_sizes(config, 50).down == exact
    packed = sum(len(array.data) for array in initial_arrays(config, 50).values())
    assert packed == pytest.approx(exact, abs=200 * len(shared))


def test_what_a_node_sends_back_grows_with_the_items_it_touches() -> None:
    config = make_config("fedrecgel", {"scorer": "dot", "embedding-dim": 3})
    sizes = message_sizes(config, 10)
    row = sizes.row
    assert sizes.up(4) == 4 * (row + 8)
    assert sizes.up(99) == 10 * (row + 8)


def test_the_forecast_is_one_line() -> None:
    config = make_config("fedrecgel", {"scorer": "dot", "embedding-dim": 64})
    line = message_sizes(config, 100_000).line(500)
    assert line.startswith("messages: 26 MB to a node, at most 26.8 MB back; ")
    assert line.endswith("a node with one average user sends 134 KB")


def test_two_million_items_are_told_and_a_billion_bytes_refused() -> None:
    """Only a model of one item is made for this."""
    config = make_config("fedrecgel", {"scorer": "dot", "embedding-dim": 64})
    sizes = message_sizes(config, 2_000_000)
    sizes.refuse_large()
    assert sizes.down == 2_000_000 * sizes.row
    with pytest.raises(ConfigError, match=r"2,000,000 items take 2.06 GB .* 1.07 GB"):
        message_sizes(config.replace(embedding_dim=256), 2_000_000).refuse_large()


def test_a_run_beyond_the_limit_makes_no_folder(
    small_data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedrecgel.common.sizes.MESSAGE_LIMIT", 100)
    with pytest.raises(ConfigError, match="lower embedding-dim"):
        simulate(small_data, tmp_path / "run", log="none")
    assert not (tmp_path / "run").exists()
