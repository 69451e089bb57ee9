"""Message sizes, told before a run and refused beyond the limit."""

from pathlib import Path

import pytest

from fedrecgel import make_config, simulate
from fedrecgel.common.algorithms.registry import ALGORITHMS, make_algorithm
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.records import initial_arrays
from fedrecgel.common.sizes import message_sizes, refuse_disk, refuse_memory


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


def test_the_forecast_counts_what_single_users_get_and_send() -> None:
    """50 items of 8 numbers of 4 bytes; a sent row has an index of 8 bytes."""
    table = 50 * 8 * 4
    sizes = {}
    for name in ("gpfedrec", "cofedrec", "perfedrec"):
        sizes[name] = message_sizes(make_config(name, {"embedding-dim": 8}), 50)
        assert sizes[name].per_user
        assert sizes[name].addressed == table
    assert [size.down for size in sizes.values()] == [table, 50 * 8, table]
    assert sizes["gpfedrec"].up(50) == sizes["cofedrec"].up(50) == table + 50 * 8
    assert sizes["perfedrec"].up(50) == table + 50 * 8 + 8 * 4
    line = sizes["cofedrec"].line(9)
    assert line == (
        "messages: 400 B to a node and 1.6 KB for each user of the round; "
        "each user's own update comes back, at most 2 KB"
    )


def test_updates_of_too_many_users_on_a_node_are_refused_with_the_number() -> None:
    sizes = message_sizes(make_config("gpfedrec", {"embedding-dim": 32}), 12_454)
    sizes.refuse_large(600)
    with pytest.raises(
        ConfigError, match=r"1,600 users on a node take 2.71 GB .* at least 3 times"
    ):
        sizes.refuse_large(1600)


@pytest.mark.parametrize("name", ["gpfedrec", "cofedrec", "perfedrec"])
def test_what_a_server_would_keep_is_refused_beyond_the_limit(name: str) -> None:
    """U033: 8,072 users and 11,830 items; GPFedRec keeps a table of 32 numbers a row for each.

    Of a tenth of them, the round's, there are two copies more.
    """
    config = make_config(name)
    if name == "gpfedrec":
        text = r"would keep 15\.7 GB for 8,072 users and 11,830 items, more than memory-limit=4 GB"
        with pytest.raises(ConfigError, match=text):
            refuse_memory(config, 8072, 11830)
    else:
        refuse_memory(config, 8072, 11830)
    refuse_memory(config.replace(memory_limit=16.0), 8072, 11830)


def test_a_store_that_does_not_fit_on_the_disk_is_refused(tmp_path: Path) -> None:
    config = make_config("cofedrec")
    refuse_disk(config, 100, 1000, tmp_path / "not" / "there")
    with pytest.raises(ConfigError, match=r"the private store of cofedrec would take about .* GB"):
        refuse_disk(config, 100_000, 10_000_000, tmp_path)


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_only_sums_may_reach_a_server_that_sees_sums(name: str) -> None:
    """U039: refused at the start, with the reason."""
    config = make_config(name, {"server-sees": "sum"})
    if ALGORITHMS[name].reduce == "sum":
        make_algorithm(config, 10)
    else:
        with pytest.raises(ConfigError, match=f"{name} compares the users' own updates"):
            make_algorithm(config, 10)
