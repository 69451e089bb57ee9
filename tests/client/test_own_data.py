"""A site with a file of its own: prepared once by the catalogue, or refused in one line."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecgel.client import own_data
from fedrecgel.client.own_data import OwnDataSite, open_own_data, prepared_for
from fedrecgel.client.state_folder import STORE
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.errors import ConfigError, DataError, FederationError, FedRecError, RunError
from fedrecgel.common.greeting import Query
from fedrecgel.common.requests import Experiment

ITEMS = [f"i{k}" for k in range(8)]
CATALOGUE = Catalogue("shop", np.array(ITEMS), num_candidates=3, min_interactions=3)
QUERY = Query("run1", CATALOGUE)
ROWS = [(user, f"i{k}", k) for user in ("zoe", "bob") for k in range(len(user) + 1)]

Node = dict[str, object]


def experiment(run: str = "run1") -> Experiment:
    return Experiment(run, "fedncf", {}, len(ITEMS), CATALOGUE.hash)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    file = tmp_path / "interactions.csv"
    file.write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in ROWS))
    return {"site": "clinic-a", "interactions": str(file), "state": str(tmp_path / "state")}


def add(node: Node, line: str) -> None:
    with open(str(node["interactions"]), "a") as file:
        file.write(line + "\n")


def state(node: Node) -> Path:
    return Path(str(node["state"]))


def test_the_answer_counts_users_and_names_the_catalogue(node: Node) -> None:
    add(node, "zoe,new,9")
    hello = open_own_data(node, QUERY).hello()
    assert (hello.site, hello.users, hello.num_items) == ("clinic-a", 2, 8)
    assert (hello.validation_users, hello.test_users, hello.unknown) == (2, 2, 1)
    assert (hello.catalogue, hello.parts) == (CATALOGUE.hash, 1)


def test_later_messages_find_the_data_without_the_file(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_own_data(node, QUERY)
    os.unlink(str(node["interactions"]))
    own_data._open.cache_clear()
    later = open_own_data(node, experiment())
    assert later.data.hash == first.data.hash
    assert later.catalogue == CATALOGUE.hash


def test_the_file_is_prepared_once(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    make = own_data.site_dataset

    def counted(*arguments: Any) -> Any:
        nonlocal made
        made += 1
        return make(*arguments)

    monkeypatch.setattr(own_data, "site_dataset", counted)
    open_own_data(node, QUERY)
    open_own_data(node, QUERY)
    open_own_data(node, Query("run2", CATALOGUE))
    assert made == 1
    other = Catalogue("shop", np.array(ITEMS), num_candidates=3, min_interactions=4)
    assert open_own_data(node, Query("run3", other)).hello().users == 2
    assert made == 2


def test_a_file_that_changes_changes_the_next_run_only(node: Node) -> None:
    assert open_own_data(node, QUERY).hello().users == 2
    for item in range(3):
        add(node, f"carl,i{item},{item}")
    assert open_own_data(node, QUERY).hello().users == 2
    assert open_own_data(node, experiment()).data.num_users == 2
    assert open_own_data(node, Query("run2", CATALOGUE)).hello().users == 3
    assert open_own_data(node, experiment()).data.num_users == 2


def test_a_file_with_the_same_bytes_is_not_prepared_again(node: Node) -> None:
    """Copied anew, with another time: the hash decides."""
    open_own_data(node, QUERY)
    file = Path(str(node["interactions"]))
    os.utime(file, (1, 1))
    open_own_data(node, Query("run2", CATALOGUE))
    assert len(list((state(node) / "prepared").iterdir())) == 1


def test_the_state_folder_of_another_site_is_left_as_it_is(node: Node, tmp_path: Path) -> None:
    open_own_data(node, QUERY)
    before = prepared_for(state(node), "run1")
    file = tmp_path / "others.csv"
    file.write_text("user,item,time\n" + "".join(f"{u},{i},{t}\n" for u, i, t in ROWS[:4]))
    other = {**node, "site": "clinic-b", "interactions": str(file)}
    with pytest.raises(RunError, match=r"clinic-b: .*state belongs to site 'clinic-a'; give each"):
        open_own_data(other, QUERY)
    with pytest.raises(RunError, match="belongs to site 'clinic-a'"):
        open_own_data(other, Query("run2", CATALOGUE))
    assert prepared_for(state(node), "run1") == before
    assert open_own_data(node, Query("run2", CATALOGUE)).hello().users == 2


def test_data_of_old_runs_are_removed(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_data, "RUNS", 2)
    for run in range(4):
        add(node, f"carl,i{run},{run}")
        open_own_data(node, Query(f"run{run}", CATALOGUE))
    assert len(list((state(node) / "prepared").iterdir())) == 2
    with pytest.raises(DataError, match="no data prepared for this run"):
        open_own_data(node, experiment("run0"))
    assert open_own_data(node, experiment("run3")).data.num_users == 3


def test_a_damaged_preparation_is_made_again(node: Node) -> None:
    folder = prepared_for(state(node), "run1") if open_own_data(node, QUERY) else Path()
    (folder / "manifest.json").write_text("{")
    (state(node) / "runs" / "run1.json").write_text("")
    own_data.open_data.cache_clear()
    assert open_own_data(node, QUERY).hello().users == 2


def test_only_the_owner_may_read_what_is_prepared(node: Node) -> None:
    before = os.umask(0)
    try:
        open_own_data(node, QUERY)
    finally:
        os.umask(before)
    assert state(node).stat().st_mode & 0o777 == 0o700
    for path in state(node).rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


def test_equal_data_have_equal_fingerprints_in_one_run_only(node: Node, tmp_path: Path) -> None:
    other = {**node, "site": "clinic-b", "state": str(tmp_path / "other")}
    one, two = (open_own_data(n, QUERY).hello().fingerprint for n in (node, other))
    assert one == two
    assert open_own_data(node, Query("run2", CATALOGUE)).hello().fingerprint != one
    add(other, "zoe,i7,9")
    again = open_own_data({**other, "state": str(tmp_path / "third")}, QUERY)
    assert again.hello().fingerprint != one


def test_a_fingerprint_tells_of_items_and_of_no_user(node: Node, tmp_path: Path) -> None:
    """Other ids, the same items: the same. A single user has none."""
    text = Path(str(node["interactions"])).read_text()
    other = tmp_path / "other.csv"
    other.write_text(text.replace("zoe", "eve").replace("bob", "ada"))
    single = tmp_path / "single.csv"
    single.write_text("\n".join(line for line in text.splitlines() if "bob" not in line))
    prints = [
        open_own_data(
            {**node, "interactions": str(file), "state": str(tmp_path / file.stem)}, QUERY
        )
        .hello()
        .fingerprint
        for file in (Path(str(node["interactions"])), other, single)
    ]
    assert prints[0] == prints[1] != ""
    assert prints[2] == ""


def test_what_is_left_out_is_said_in_the_sites_own_log(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("flwr"), "propagate", True)
    caplog.set_level(logging.INFO, logger="flwr")
    add(node, "zoe,new,9")
    open_own_data(node, QUERY)
    assert "clinic-a: 2 users with 8 interactions prepared; 1 rows" in caplog.text
    assert "zoe" not in caplog.text


@pytest.mark.parametrize("missing", ["site", "interactions", "state"])
def test_a_missing_entry_is_named_with_an_example(node: Node, missing: str) -> None:
    del node[missing]
    with pytest.raises(ConfigError, match=f"the node has no '{missing}'; give it .* e.g. "):
        open_own_data(node, QUERY)


def test_a_name_that_cannot_be_shown_is_refused(node: Node) -> None:
    for name in ("a\nb", "x" * 65):
        with pytest.raises(ConfigError, match="'site' is"):
            open_own_data({**node, "site": name}, QUERY)


Change = Callable[[Node, Path], None]


def without_file(node: Node, folder: Path) -> None:
    node["interactions"] = str(folder / "none.csv")


def empty(node: Node, folder: Path) -> None:
    Path(str(node["interactions"])).write_text("")


def only_unknown(node: Node, folder: Path) -> None:
    Path(str(node["interactions"])).write_text("user,item\nann,x\nann,y\n")


def only_few(node: Node, folder: Path) -> None:
    Path(str(node["interactions"])).write_text("user,item\nann,i0\n")


def no_table(node: Node, folder: Path) -> None:
    Path(str(node["interactions"])).write_bytes(b"PK\x03\x04" + bytes(range(256)))


def file_for_state(node: Node, folder: Path) -> None:
    (folder / "state").write_text("")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_file, "none.csv cannot be read: .*is the file mounted there"),
        (empty, "empty"),
        (only_unknown, "none of its 2 items is in the catalogue of shop"),
        (only_few, "no user has 3 interactions"),
        (no_table, "a zip archive"),
        (file_for_state, "state folder .*state cannot be written"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_names_the_site(
    node: Node, tmp_path: Path, change: Change, message: str
) -> None:
    change(node, tmp_path)
    with pytest.raises(FedRecError, match=f"^clinic-a: .*{message}") as caught:
        open_own_data(node, QUERY)
    assert "\n" not in str(caught.value)
    assert "zoe" not in str(caught.value)


def test_a_server_without_catalogue_is_told(node: Node) -> None:
    with pytest.raises(DataError, match=r"sent no catalogue.*catalogue=FILE"):
        open_own_data(node, Query("run1"))
    with pytest.raises(FederationError, match="which only FedRecStrategy sends"):
        open_own_data(node, None)


@pytest.mark.parametrize("run", ["", "../up", "a/b", "."])
def test_a_run_cannot_name_a_path(node: Node, run: str) -> None:
    with pytest.raises(DataError, match="no proper id"):
        open_own_data(node, Query(run, CATALOGUE))


def test_private_state_is_the_sites_own_file(node: Node, tmp_path: Path) -> None:
    from fedrecgel.common.algorithms.registry import make_algorithm, make_config

    site = open_own_data(node, QUERY)
    assert isinstance(site, OwnDataSite)
    algorithm = make_algorithm(make_config("fedncf", {"scorer": "dot", "embedding-dim": 2}), 8)
    store = site.store(experiment(), algorithm.private_template)
    users = np.arange(2)
    fresh = algorithm.init_private(site.data.user_keys)
    store.save(users, np.zeros((1, 2), dtype=np.int64), 1, fresh)
    assert store.latest(users).tolist() == [1, 1]
    assert site.store(experiment(), algorithm.private_template) is store
    assert (state(node) / STORE).is_file()


def test_the_pointer_of_a_run_holds_no_user(node: Node) -> None:
    open_own_data(node, QUERY)
    assert json.loads((state(node) / "runs" / "run1.json").read_text()).keys() == {"data"}
