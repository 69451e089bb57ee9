"""Private state on a node: kept as long as a request names it, and nobody else's business."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrecgel.client.sqlite_store import SqliteStore
from fedrecgel.client.store import PLACES, RANK_FIELDS, ArrayStore, load_ranks
from fedrecgel.common.errors import RunError
from fedrecgel.common.state import State

TEMPLATE = {"user": torch.zeros(2), "step": torch.tensor(0)}
EVERYONE = np.arange(4)


def store(folder: Path, experiment: str = "one", users: int = 4) -> ArrayStore:
    return ArrayStore(folder / "private", experiment, users, TEMPLATE)


KINDS = ("arrays", "sqlite", "encrypted")
every_kind = pytest.mark.parametrize("kind", KINDS)


def open_store(kind: str, folder: Path, experiment: str = "one") -> ArrayStore | SqliteStore:
    if kind == "arrays":
        return store(folder, experiment)
    key = bytes(range(32)) if kind == "encrypted" else None
    path = folder / "private" / "private.sqlite"
    return SqliteStore(path, experiment, "site-1", ("anna", "bert", "cleo", "dora"), TEMPLATE, key)


def states(*values: float) -> State:
    return {
        "user": torch.tensor([[value, -value] for value in values]).reshape(-1, 2).float(),
        "step": torch.tensor([int(value) for value in values]),
    }


def rounds(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def loaded(found: State) -> list[int]:
    assert found["user"][:, 0].tolist() == found["step"].tolist()
    assert found["user"][:, 1].tolist() == (-found["step"]).tolist()
    return found["step"].tolist()


@every_kind
def test_users_load_what_their_accepted_round_produced(kind: str, tmp_path: Path) -> None:
    kept = open_store(kind, tmp_path)
    kept.save(rounds(0, 2), np.zeros((1, 2), np.int64), 1, states(10, 12))
    kept.save(rounds(2, 3), rounds(1, 0)[None], 2, states(22, 23))
    assert loaded(kept.load(rounds(3, 0, 2), rounds(2, 1, 2))) == [23, 10, 22]
    assert loaded(kept.load(rounds(2), rounds(1))) == [12]
    assert loaded(kept.load(rounds(), rounds())) == []


@every_kind
def test_a_round_that_was_not_accepted_is_undone(kind: str, tmp_path: Path) -> None:
    kept, user = open_store(kind, tmp_path), rounds(1)
    kept.save(user, rounds(0)[None], 1, states(1))
    kept.save(user, rounds(1)[None], 2, states(2))  # its reply is lost: the server keeps saying 1
    assert loaded(kept.load(user, rounds(1))) == [1]
    kept.save(user, rounds(1)[None], 3, states(3))
    kept.save(user, rounds(3)[None], 4, states(4))
    assert loaded(kept.load(user, rounds(3))) == [3]
    assert loaded(kept.load(user, rounds(4))) == [4]


@every_kind
def test_a_first_round_that_was_not_accepted_leaves_a_new_user(kind: str, tmp_path: Path) -> None:
    kept, user = open_store(kind, tmp_path), rounds(1)
    for round in (1, 2, 3):
        kept.save(user, rounds(0)[None], round, states(round))
    assert loaded(kept.load(user, rounds(3))) == [3]
    for round in (1, 2):
        with pytest.raises(RunError, match="1 of 1 users"):
            kept.load(user, rounds(round))


@every_kind
def test_a_round_that_runs_again_writes_over_its_first_attempt(kind: str, tmp_path: Path) -> None:
    kept, user = open_store(kind, tmp_path), rounds(0)
    kept.save(user, rounds(0)[None], 1, states(1))
    kept.save(user, rounds(1)[None], 2, states(2))
    kept.save(user, rounds(1)[None], 2, states(9))
    assert loaded(kept.load(user, rounds(2))) == [9]
    assert kept.latest(user).tolist() == [2]
    assert loaded(kept.load(user, rounds(1))) == [1]


@every_kind
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_whatever_a_request_names_can_be_loaded(
    kind: str, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As a dict would: any users in any round, accepted or not, up to five older ones named."""
    folder = tmp_path_factory.mktemp("store")
    kept = open_store(kind, folder)
    model: dict[tuple[int, int], int] = {}
    accepted, named = [0] * 4, {user: [0] for user in range(4)}
    for round in range(1, data.draw(st.integers(1, 12))):
        users = sorted(data.draw(st.sets(st.integers(0, 3), min_size=1)))
        width = max(len(named[user]) for user in users)
        needed = [[*named[user], *([0] * width)][:width] for user in users]
        values = [10 * round + user for user in users]
        kept.save(rounds(*users), np.array(needed, dtype=np.int64).T, round, states(*values))
        for user, value in zip(users, values, strict=True):
            held = {key: v for key, v in model.items() if key[0] != user or key[1] in named[user]}
            model = {**held, (user, round): value}
            if data.draw(st.booleans()):
                accepted[user] = round
            older = [number for number in {*named[user], accepted[user]} if number > 0]
            more = data.draw(st.sets(st.sampled_from(older), max_size=PLACES - 2)) if older else ()
            named[user] = [accepted[user], *more]
        if data.draw(st.booleans()):
            del kept  # the next process
            kept = open_store(kind, folder)
        keys = [(user, number) for user in range(4) for number in named[user] if number > 0]
        found = kept.load(rounds(*(k[0] for k in keys)), rounds(*(k[1] for k in keys)))
        assert loaded(found) == [model[key] for key in keys]
        assert (kept.latest(EVERYONE) >= rounds(*accepted)).all()


def test_more_rounds_than_places_are_not_overwritten_in_silence(tmp_path: Path) -> None:
    kept, user = store(tmp_path), rounds(0)
    for round in range(1, PLACES + 1):
        named = np.arange(round, dtype=np.int64)[:, None]
        kept.save(user, named, round, states(round))
    with pytest.raises((AssertionError, RunError)):
        kept.save(user, np.arange(PLACES + 1, dtype=np.int64)[:, None], PLACES + 1, states(99))
    for round in range(1, PLACES + 1):
        assert loaded(kept.load(user, rounds(round))) == [round]


@every_kind
def test_a_missing_state_is_one_line_that_says_how_many(kind: str, tmp_path: Path) -> None:
    kept = open_store(kind, tmp_path)
    kept.save(rounds(0), rounds(0)[None], 1, states(1))
    with pytest.raises(RunError, match="private state of 2 of 3 users") as caught:
        kept.load(rounds(0, 1, 2), rounds(1, 1, 5))
    assert "\n" not in str(caught.value)


@every_kind
def test_the_chosen_round_is_found_again_in_a_new_process(kind: str, tmp_path: Path) -> None:
    kept = open_store(kind, tmp_path)
    kept.save(rounds(0, 1, 3), np.zeros((1, 3), np.int64), 1, states(10, 11, 13))
    kept.save(rounds(1), rounds(1)[None], 2, states(21))
    ranks = np.arange(4 * RANK_FIELDS).reshape(4, RANK_FIELDS)
    kept.finish(EVERYONE, rounds(1, 1, 0, 1), ranks)
    del kept
    again = open_store(kind, tmp_path)
    found, who = again.load_chosen(EVERYONE)
    assert who.tolist() == [True, True, False, True]
    assert loaded(found) == [10, 11, 13]
    some, who = again.load_chosen(rounds(2, 1))
    assert (loaded(some), who.tolist()) == ([11], [False, True])
    if isinstance(again, SqliteStore):
        assert np.array_equal(again.load_ranks(EVERYONE), ranks)
    else:
        assert np.array_equal(load_ranks(tmp_path / "private"), ranks)


@every_kind
def test_before_a_test_nothing_is_chosen(kind: str, tmp_path: Path) -> None:
    kept = open_store(kind, tmp_path)
    kept.save(rounds(0), rounds(0)[None], 1, states(1))
    found, who = kept.load_chosen(EVERYONE)
    assert (loaded(found), who.tolist()) == ([], [False] * 4)


@every_kind
def test_who_goes_on_from_a_kept_state(kind: str, tmp_path: Path) -> None:
    kept = open_store(kind, tmp_path)
    kept.save(rounds(0, 2), np.zeros((1, 2), np.int64), 1, states(1, 3))
    assert kept.trained(EVERYONE, rounds(1, 0, 1, 0)).tolist() == [True, False, True, False]
    # A state that is lost is not the same as none.
    assert kept.trained(EVERYONE, rounds(2, 1, 5, 1)).tolist() == [True] * 4


def test_ranks_are_absent_before_a_test(tmp_path: Path) -> None:
    store(tmp_path)
    assert (load_ranks(tmp_path / "private") == -1).all()


def test_two_nodes_share_a_folder_with_users_of_their_own(tmp_path: Path) -> None:
    one, two = store(tmp_path), store(tmp_path)
    one.save(rounds(0, 1), np.zeros((1, 2), np.int64), 1, states(1, 2))
    two.save(rounds(2, 3), np.zeros((1, 2), np.int64), 1, states(3, 4))
    assert loaded(one.load(EVERYONE, rounds(1, 1, 1, 1))) == [1, 2, 3, 4]


@every_kind
def test_another_experiment_finds_nothing(kind: str, tmp_path: Path) -> None:
    open_store(kind, tmp_path).save(rounds(0), rounds(0)[None], 1, states(1))
    other = open_store(kind, tmp_path, experiment="two")
    with pytest.raises(RunError, match="another run"):
        other.load(rounds(0), rounds(1))


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_only_the_owner_may_read(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        store(tmp_path)
    finally:
        os.umask(before)
    folder = tmp_path / "private"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}


@pytest.mark.parametrize("name", ["user", "rounds", "chosen", "ranks"])
@pytest.mark.parametrize("content", [None, b"", b"damaged"])
def test_a_lost_or_damaged_file_is_one_line(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    store(tmp_path)
    file = tmp_path / "private" / f"{name}.npy"
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(RunError, match=f"{name}.npy is missing or damaged") as caught:
        store(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("header", [None, "", "{}", '{"experiment": "two"}'])
def test_a_run_that_is_only_read_is_never_begun_anew(tmp_path: Path, header: str | None) -> None:
    kept = store(tmp_path)
    kept.save(rounds(0), rounds(0)[None], 1, states(1))
    kept.finish(EVERYONE, rounds(1, 0, 0, 0), np.zeros((4, RANK_FIELDS), np.int64))
    file = tmp_path / "private" / "store.json"
    good = file.read_text()
    file.unlink()
    if header is not None:
        file.write_text(header)
    with pytest.raises(RunError, match="does not hold the private state of this run"):
        ArrayStore(tmp_path / "private", "one", 4, TEMPLATE, create=False)
    file.write_text(good)
    again = ArrayStore(tmp_path / "private", "one", 4, TEMPLATE, create=False)
    assert loaded(again.load_chosen(rounds(0))[0]) == [1]


def test_the_header_says_what_is_kept_and_for_which_run(tmp_path: Path) -> None:
    store(tmp_path)
    header = json.loads((tmp_path / "private" / "store.json").read_text())
    assert header["experiment"] == "one"
    assert header["num_users"] == 4
    assert header["tensors"]["user"] == [[2], "torch.float32"]
