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


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_sites_own_file_is_never_replaced(tmp_path: Path) -> None:
    data = prepare("synthetic", tmp_path / "data", users=40)
    folder = tmp_path / "sites"
    own = write_sites(data, folder, NAMES)[1].file
    text = own.read_text()
    own.write_text("user,item\nu,i\n")
    before = contents(folder)
    for names in (NAMES, NAMES[:2]):
        with pytest.raises(DeployError, match=r"site-2/interactions\.csv is not what was written"):
            write_sites(data, folder, names)
    assert contents(folder) == before
    own.unlink()
    assert write_sites(data, folder, NAMES)[1].file.read_text() == text


def test_fewer_sites_leave_no_file_of_the_others_but_their_own(tmp_path: Path) -> None:
    data = prepare("synthetic", tmp_path / "data", users=40)
    folder = tmp_path / "sites"
    files = [site.file for site in write_sites(data, folder, [*NAMES, "site-4"])]
    files[3].write_text("own")
    files[:2] = [site.file for site in write_sites(data, folder, NAMES[:2])]
    assert [file.exists() for file in files] == [True, True, False, True]


def test_a_file_that_was_there_before_is_a_sites_own(tmp_path: Path) -> None:
    data = prepare("synthetic", tmp_path / "data", users=40)
    own = tmp_path / "sites" / "site-1" / "interactions.csv"
    own.parent.mkdir(parents=True)
    own.write_text("own")
    with pytest.raises(DeployError, match="move it away to have it replaced"):
        write_sites(data, tmp_path / "sites", NAMES)


@pytest.mark.parametrize(("readable", "modes"), [(False, (0o700, 0o600)), (True, (0o755, 0o644))])
def test_files_are_their_owners_alone_unless_containers_read_them(
    tmp_path: Path, readable: bool, modes: tuple[int, int]
) -> None:
    data = prepare("synthetic", tmp_path / "data", users=40)
    (tmp_path / "sites").mkdir(mode=0o755)
    for site in write_sites(data, tmp_path / "sites", NAMES, readable=readable):
        assert (site.file.parent.stat().st_mode & 0o777, site.file.stat().st_mode & 0o777) == modes
    assert (tmp_path / "sites").stat().st_mode & 0o777 == modes[0]


def test_another_protocol_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    data = prepare("synthetic", tmp_path / "data", users=40, protocol="paper")
    with pytest.raises(DataError, match="protocol paper"):
        write_sites(data, tmp_path / "sites", NAMES)
    assert not (tmp_path / "sites").exists()
