"""A data set split into sites' own files: the same users, rows and order as before."""

from pathlib import Path

import numpy as np
import pytest

from fedrecgel import prepare
from fedrecgel.common.data.catalogue import Catalogue, site_dataset
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import DataError, DeployError
from fedrecgel.deploy.sites import shares, write_sites

NAMES = ["site-1", "site-2", "site-3"]


@pytest.mark.parametrize(
    ("users", "sites", "sizes"),
    [
        (10, 3, [5, 4, 1]),
        (3, 3, [1, 1, 1]),
        (4, 3, [1, 2, 1]),
        (5, 1, [5]),
        (1227, 3, [817, 409, 1]),
        (100, 5, [51, 27, 13, 8, 1]),
    ],
)
def test_each_site_is_half_the_one_before_and_the_last_a_single_user(
    users: int, sites: int, sizes: list[int]
) -> None:
    assert np.diff(shares(users, sites)).tolist() == sizes


def test_more_sites_than_users_are_refused() -> None:
    with pytest.raises(DeployError, match="2 users cannot be split over 3 sites"):
        shares(2, 3)


def assert_same_users(data: Dataset, folder: Path, scratch: Path) -> None:
    """Every site's own preparation gives the rows that its users have in ``data``."""
    files = write_sites(data, folder, NAMES)
    catalogue, first = Catalogue.load(folder / "catalogue.json"), 0
    for site in files:
        own = site_dataset(catalogue, site.file, scratch / site.name)
        last = first + site.users
        assert own.user_ids.tolist() == data.user_ids[first:last].tolist()
        begin, end = data.train_offsets[first], data.train_offsets[last]
        assert own.train_items.tolist() == data.train_items[begin:end].tolist()
        for name in ("validation_items", "test_items", "test_candidates"):
            assert np.array_equal(getattr(own, name), getattr(data, name)[first:last]), name
        first = last
    assert first == data.num_users


def test_sites_prepare_the_rows_of_the_whole_data_set(tmp_path: Path) -> None:
    data = prepare("synthetic", tmp_path / "data", users=40)
    assert_same_users(data, tmp_path / "sites", tmp_path / "own")


@pytest.mark.realdata
def test_so_do_sites_of_filmtrust_which_has_no_times(tmp_path: Path, shared_data: Path) -> None:
    data = prepare(shared_data / "filmtrust", tmp_path / "data")
    assert_same_users(data, tmp_path / "sites", tmp_path / "own")


def test_ids_with_commas_and_quotes_come_through(tmp_path: Path) -> None:
    rows = [f'"u,{u}","the ""item"", {i}",{i}' for u in range(3) for i in range(6)]
    (tmp_path / "in.csv").write_text("user,item,time\n" + "\n".join(rows))
    data = prepare(tmp_path / "in.csv", tmp_path / "data")
    assert_same_users(data, tmp_path / "sites", tmp_path / "own")


def test_another_protocol_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = prepare("synthetic", tmp_path / "data", users=40, protocol="paper")
    with pytest.raises(DataError, match="protocol paper"):
        write_sites(data, tmp_path / "sites", NAMES)
    assert not (tmp_path / "sites").exists()
