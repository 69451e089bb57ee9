"""The private store on disk: whose it is, what it survives, what it says when it cannot."""

import json
import os
import re
import shutil
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedrecgel.client.sealing import make_key, read_key
from fedrecgel.client.sqlite_file import SqliteFile
from fedrecgel.client.sqlite_store import KEEP_EXPERIMENTS, SqliteStore
from fedrecgel.client.store import RANK_FIELDS
from fedrecgel.client.store_contents import forget_user, list_experiments
from fedrecgel.common.errors import RunError
from fedrecgel.common.state import State

TEMPLATE = {"user": torch.zeros(2), "step": torch.tensor(0)}
USERS = ("anna", "bert", "cleo", "dora")
EVERYONE = np.arange(4)
KEY = bytes(range(32))


def path_in(folder: Path) -> Path:
    return folder / "state" / "private.sqlite"


def open_store(
    folder: Path, experiment: str = "one", key: bytes | None = None, **more: Any
) -> SqliteStore:
    given = {"site": "site-1", "user_ids": USERS, "template": TEMPLATE, **more}
    return SqliteStore(path_in(folder), experiment, key=key, **given)


def states(*values: float) -> State:
    return {
        "user": torch.tensor([[value, -value] for value in values]).reshape(-1, 2).float(),
        "step": torch.tensor([int(value) for value in values], dtype=torch.int64),
    }


def rounds(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def save(store: SqliteStore, round: int, *values: float, kept: int = 0) -> None:
    """Save a state for each of the first users."""
    users = np.arange(len(values))
    store.save(users, np.full((1, len(users)), kept), round, states(*values))


def steps(store: SqliteStore, users: np.ndarray, round: int) -> list[int]:
    return store.load(users, np.full(len(users), round))["step"].tolist()


def one_line(error: pytest.ExceptionInfo[RunError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert str(error.value).count("private.sqlite") >= 1
    return text


NURSERY = """
import json, os, sys, traceback
from pathlib import Path
import numpy as np, torch
import cryptography.hazmat.primitives.ciphers.aead, cryptography.hazmat.primitives.kdf.hkdf
from fedrecgel.client.sqlite_file import SqliteFile
from fedrecgel.client.sqlite_store import SqliteStore
from fedrecgel.client.store_contents import forget_user
from fedrecgel.common.errors import RunError
TEMPLATE = {"user": torch.zeros(2), "step": torch.tensor(0)}
for line in sys.stdin:
    out, into = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(into, 1), os.dup2(into, 2)
        try:
            exec(json.loads(line), globals())
            code = 0
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush(), sys.stderr.flush()
        os._exit(code)
    os.close(into)
    with os.fdopen(out) as stream:
        printed = stream.read()
    print(json.dumps([os.waitpid(child, 0)[1], printed]), flush=True)
"""

Elsewhere = Callable[[str], str]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    """Run a program in a process of its own, which need not import everything again."""
    words = [sys.executable, "-c", NURSERY]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    into, out = process.stdin, process.stdout

    def run(program: str) -> str:
        into.write(json.dumps(textwrap.dedent(program)) + "\n")
        into.flush()
        status, printed = json.loads(out.readline())
        assert status == 0, printed
        return str(printed)

    yield run
    into.close()
    process.wait()
    out.close()


# --- what is kept ----------------------------------------------------------------------------


def test_only_what_is_named_and_the_new_state_are_kept(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    for round in range(1, 6):
        save(store, round, round, kept=max(0, round - 1))
    assert steps(store, rounds(0), 5) == [5]
    assert steps(store, rounds(0), 4) == [4]
    assert list_experiments(SqliteFile(path_in(tmp_path), read_only=True))[0].states == 2
    store.save(rounds(0), rounds(2, 4)[:, None], 6, states(6))
    for gone in (1, 2, 3, 5):
        with pytest.raises(RunError, match="1 of 1 users"):
            store.load(rounds(0), rounds(gone))


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_not_a_number_and_minus_zero_come_back_bitwise(tmp_path: Path, key: bytes | None) -> None:
    state = states(1)
    state["user"] = torch.tensor([[float("nan"), -0.0]])
    store = open_store(tmp_path, key=key)
    store.save(rounds(0), rounds(0)[None], 1, state)
    found = store.load(rounds(0), rounds(1))["user"]
    assert found.numpy().tobytes() == state["user"].numpy().tobytes()


def test_other_tensors_under_the_same_experiment_are_refused(tmp_path: Path) -> None:
    save(open_store(tmp_path), 1, 1)
    with pytest.raises(RunError, match="holds other tensors for experiment one") as error:
        open_store(tmp_path, template={"user": torch.zeros(3)})
    one_line(error)
    assert steps(open_store(tmp_path), rounds(0), 1) == [1]


def test_the_experiments_used_last_stay_and_the_one_that_finished_last(tmp_path: Path) -> None:
    """None of the others leaves before there are more than the file may hold."""
    finished = open_store(tmp_path, "finished")
    save(finished, 1, 1)
    finished.finish(rounds(0), rounds(1), np.zeros((1, RANK_FIELDS), np.int64))
    names = [f"run {number}" for number in range(KEEP_EXPERIMENTS + 2)]
    for name in names:
        save(open_store(tmp_path, name), 1, 2)
    held = list_experiments(SqliteFile(path_in(tmp_path), read_only=True))
    assert [one.experiment for one in held] == [*names[: -KEEP_EXPERIMENTS - 1 : -1], "finished"]
    assert finished.load_chosen(rounds(0))[0]["step"].tolist() == [1]


def test_an_open_store_whose_experiment_left_the_file_enters_it_again(tmp_path: Path) -> None:
    first = open_store(tmp_path, "first")
    save(first, 1, 1)
    for number in range(KEEP_EXPERIMENTS):
        save(open_store(tmp_path, f"run {number}"), 1, 2)
    with pytest.raises(RunError, match="is not in"):
        first.load(rounds(0), rounds(1))
    save(first, 2, 7)
    assert steps(first, rounds(0), 2) == [7]


# --- whose it is -----------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0o000, 0o077])
def test_only_the_owner_may_read(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        store = open_store(tmp_path)
        save(store, 1, 1)
        modes = {
            path.name: stat.S_IMODE(path.stat().st_mode)
            for path in [path_in(tmp_path).parent, *path_in(tmp_path).parent.iterdir()]
        }
    finally:
        os.umask(before)
    assert modes == {
        "state": 0o700,
        "private.sqlite": 0o600,
        "private.sqlite-wal": 0o600,
        "private.sqlite-shm": 0o600,
        "private.sqlite.lock": 0o600,
    }


def test_a_file_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    open_store(tmp_path).close()
    path_in(tmp_path).chmod(0o644)
    open_store(tmp_path)
    assert stat.S_IMODE(path_in(tmp_path).stat().st_mode) == 0o600


def test_what_was_saved_is_on_the_disk_before_the_reply_leaves(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    connection = store._file.connection
    asked = ("synchronous", "journal_mode", "secure_delete")
    found = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in asked]
    assert found == [2, "wal", 1]  # 2 = FULL


def test_another_site_is_refused(tmp_path: Path) -> None:
    save(open_store(tmp_path), 1, 1)
    with pytest.raises(RunError, match="belongs to site 'site-1', not 'site-2'") as error:
        open_store(tmp_path, site="site-2")
    one_line(error)


OTHER = """
import sys, time
from pathlib import Path
from fedrecgel.client.lock import own
held = own(Path(sys.argv[1]), 0)
print("owned", flush=True)
time.sleep(60)
"""


@pytest.fixture
def other_owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    path_in(tmp_path).parent.mkdir()
    words = [sys.executable, "-c", OTHER, str(path_in(tmp_path))]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "owned\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_a_second_owner_is_told_who_the_first_is(
    tmp_path: Path, other_owner: "subprocess.Popen[str]"
) -> None:
    with pytest.raises(RunError, match=f"in use by process {other_owner.pid} on ") as error:
        open_store(tmp_path, wait=0.1)
    one_line(error)


def test_a_killed_owner_leaves_no_lock(
    tmp_path: Path, other_owner: "subprocess.Popen[str]"
) -> None:
    other_owner.kill()
    save(open_store(tmp_path), 1, 1)  # it may wait for the system to notice


def test_one_process_may_open_it_many_times(tmp_path: Path) -> None:
    one, two = open_store(tmp_path), open_store(tmp_path, "two")
    save(one, 1, 1)
    save(two, 1, 2)
    one.close()
    assert steps(open_store(tmp_path), rounds(0), 1) == [1]
    assert steps(two, rounds(0), 1) == [2]


def test_others_read_while_the_owner_writes(tmp_path: Path, elsewhere: Elsewhere) -> None:
    store = open_store(tmp_path)
    save(store, 1, 1, 2)
    store.finish(rounds(0, 1), rounds(1, 1), np.zeros((2, RANK_FIELDS), np.int64))
    with store._file.writing():  # in the middle of a transaction
        found = elsewhere(f"""
        path = Path({str(path_in(tmp_path))!r})
        users = ("anna", "bert", "cleo", "dora")
        store = SqliteStore(path, "one", "site-1", users, TEMPLATE, read_only=True)
        state, found = store.load_chosen(np.arange(4))
        print(state["step"].tolist(), found.tolist())
        """)
    assert found == "[1, 2] [True, True, False, False]\n"


def test_a_reader_makes_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not there"):
        open_store(tmp_path, read_only=True)
    assert list(tmp_path.iterdir()) == []
    save(open_store(tmp_path), 1, 1)
    with pytest.raises(RunError, match="holds nothing of experiment two"):
        open_store(tmp_path, "two", read_only=True)
    reader = open_store(tmp_path, read_only=True)
    with pytest.raises(RunError, match="cannot be opened or written"):
        save(reader, 2, 2)
    assert steps(reader, rounds(0), 1) == [1]


# --- what it survives ------------------------------------------------------------------------


def test_a_save_is_whole_or_not_at_all(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 1, 1, 2, 3)
    pages = store._file.connection.execute("PRAGMA page_count").fetchone()[0]
    store._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    many = 2000
    crowd = open_store(tmp_path, user_ids=[f"user {n}" for n in range(many)])
    crowd._file.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(RunError, match="cannot grow, the disk is full; nothing of it is lost") as e:
        save(crowd, 2, *range(many), kept=1)
    one_line(e)
    assert steps(store, rounds(0, 1, 2), 1) == [1, 2, 3]
    assert store.latest(EVERYONE).tolist() == [1, 1, 1, 0]
    crowd._file.connection.execute("PRAGMA max_page_count = 100000")
    save(crowd, 2, *range(many), kept=1)  # there is space again
    assert crowd.latest(np.arange(many)).tolist() == [2] * many


def test_a_limit_on_files_is_one_line_and_loses_nothing(
    tmp_path: Path, elsewhere: Elsewhere
) -> None:
    store = open_store(tmp_path)
    save(store, 1, 1, 2, 3, 4)
    store.close()
    printed = elsewhere(f"""
    import resource
    path, many = Path({str(path_in(tmp_path))!r}), 4000
    store = SqliteStore(path, "one", "site-1", [str(n) for n in range(many)], TEMPLATE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    state = {{"user": torch.ones(many, 2), "step": torch.ones(many, dtype=torch.int64)}}
    try:
        store.save(np.arange(many), np.zeros((1, many), np.int64), 2, state)
    except RunError as error:
        print(error)
    """)
    assert printed.count("\n") == 1
    assert "private.sqlite cannot be read or written (disk I/O error); nothing" in printed
    assert steps(open_store(tmp_path), EVERYONE, 1) == [1, 2, 3, 4]


@pytest.mark.skipif(os.getuid() != 0, reason="drops root's rights to meet a folder of another user")
def test_a_folder_that_may_not_be_written_is_one_line(tmp_path: Path, elsewhere: Elsewhere) -> None:
    """Also where somebody else's file can be read."""
    save(open_store(tmp_path), 1, 1)
    path_in(tmp_path).chmod(0o644)
    printed = elsewhere(f"""
    os.fchdir(os.open({str(path_in(tmp_path).parent)!r}, os.O_RDONLY))
    os.setuid(65534)
    for path in (Path("private.sqlite"), Path("new.sqlite")):
        try:
            SqliteStore(path, "one", "site-1", ["anna"], TEMPLATE)
        except RunError as error:
            print(error)
    """)
    assert printed == (
        "private.sqlite cannot be written: Permission denied\n"
        "new.sqlite cannot be written: Permission denied\n"
    )


CRASHES = """
import random, signal, time
PATH, USERS = Path({path!r}), 200
EVERYONE, template = np.arange(USERS), {{"user": torch.zeros(160)}}
random.seed(0)


def open_store():
    ids = [f"user {{n}}" for n in EVERYONE]
    return SqliteStore(PATH, "one", "site-1", ids, template, {key!r})


def state_of(round):
    values = np.random.default_rng(round).standard_normal((USERS, 160), np.float32)
    return {{"user": torch.from_numpy(values)}}


def named(round):
    return [round, round - round % 5]


def train(into):
    store = open_store()
    round = int(store.latest(EVERYONE[:1])[0])
    while True:
        kept = np.repeat(np.array(named(round))[:, None], USERS, axis=1)
        round += 1
        store.save(EVERYONE, kept, round, state_of(round))
        os.write(into, b"%d " % round)


accepted, torn = 0, 0
for kill in range({kills}):
    out, into = os.pipe()
    child = os.fork()
    if not child:
        train(into)
    os.close(into)
    # Every other one while it trains, the others also while it opens the file.
    first = os.read(out, 1).decode() if kill % 2 else ""
    time.sleep(random.uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(out) as stream:
        told = (first + stream.read()).split()
    accepted = int(told[-1]) if told else accepted
    store = open_store()
    latest = set(store.latest(EVERYONE).tolist())
    assert len(latest) == 1, latest  # a round of all users or of none
    assert latest <= {{accepted, accepted + 1}}, (latest, accepted)
    for round in [*named(accepted), *latest]:
        if round:
            found = store.load(EVERYONE, np.full(USERS, round))
            assert torch.equal(found["user"], state_of(round)["user"]), round
    torn += latest != {{accepted}}
    accepted = latest.pop()
    store.close()
print(accepted, torn)
"""


@pytest.mark.parametrize(("key", "kills"), [(None, 25), (KEY, 5)], ids=["plain", "encrypted"])
def test_a_kill_at_any_moment_loses_nothing_that_was_accepted(
    tmp_path: Path, elsewhere: Elsewhere, key: bytes | None, kills: int
) -> None:
    printed = elsewhere(CRASHES.format(path=str(path_in(tmp_path)), key=key, kills=kills))
    assert int(printed.split()[0]) >= kills // 2  # it did train between the kills


def test_a_file_in_place_of_the_folder_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(RunError, match="cannot be written: ") as error:
        open_store(tmp_path)
    one_line(error)


@pytest.mark.parametrize("content", [b"damaged", b"SQLite format 3\0" + b"x" * 5000])
def test_a_file_of_something_else_is_one_line_and_left_alone(
    tmp_path: Path, content: bytes
) -> None:
    path = path_in(tmp_path)
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(RunError, match="is not a private store of fedrecgel, or is damaged") as e:
        open_store(tmp_path)
    one_line(e)
    assert path.read_bytes() == content


def test_a_database_of_something_else_is_one_line_and_left_alone(tmp_path: Path) -> None:
    path = path_in(tmp_path)
    path.parent.mkdir()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(RunError, match="is not a private store of fedrecgel") as error:
        open_store(tmp_path)
    one_line(error)
    assert path.read_bytes() == before


def test_a_newer_format_is_one_line(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    store._file.connection.execute("PRAGMA user_version = 2")
    store.close()
    with pytest.raises(RunError, match="is of format 2, which a newer fedrecgel made") as error:
        open_store(tmp_path)
    one_line(error)


def test_a_torn_file_is_one_line_wherever_it_is_torn(tmp_path: Path) -> None:
    """Half of the file is overwritten, page by page: every answer is right or one line."""
    store = open_store(tmp_path, user_ids=[f"user {n}" for n in range(600)])
    save(store, 1, *range(600))
    store.close()
    good = path_in(tmp_path).read_bytes()
    size = len(good) // 16384
    assert size > 4
    refused = 0
    for page in range(size):
        at = page * 16384
        path_in(tmp_path).write_bytes(good[:at] + os.urandom(16384) + good[at + 16384 :])
        try:
            again = open_store(tmp_path, user_ids=[f"user {n}" for n in range(600)])
            found = steps(again, np.arange(600), 1)
            again.close()
        except RunError as error:
            assert "\n" not in str(error)  # noqa: PT017 - either is right
            refused += 1
        else:
            assert found == list(range(600))
    assert refused > size // 2


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_a_state_that_rotted_is_not_used(tmp_path: Path, key: bytes | None) -> None:
    store = open_store(tmp_path, key=key)
    save(store, 1, 1, 2)
    with store._file.writing() as connection:
        (state,) = connection.execute("SELECT state FROM states").fetchone()
        flipped = state[:-1] + bytes([state[-1] ^ 1])
        connection.execute("UPDATE states SET state = ? WHERE state = ?", (flipped, state))
    with pytest.raises(RunError, match="is damaged: a state is not what was saved") as error:
        store.load(rounds(0, 1), rounds(1, 1))
    one_line(error)


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_a_state_in_the_place_of_another_is_not_used(tmp_path: Path, key: bytes | None) -> None:
    store = open_store(tmp_path, key=key)
    save(store, 1, 1, 2)
    save(store, 2, 3, 4, kept=1)
    with store._file.writing() as connection:
        connection.execute("UPDATE states SET round = 9 - round")
    with pytest.raises(RunError, match="is damaged"):
        store.load(rounds(0), rounds(8))


# --- encryption ------------------------------------------------------------------------------


def test_an_encrypted_file_tells_neither_numbers_nor_users(tmp_path: Path) -> None:
    value = 1234.5678
    for key in (None, KEY):
        folder = tmp_path / str(bool(key))
        store = open_store(folder, key=key)
        save(store, 1, value, value, value, value)
        ranks = np.full((4, RANK_FIELDS), 3_141_592_653)
        store.finish(EVERYONE, rounds(1, 1, 1, 1), ranks)
        store.close()
        content = path_in(folder).read_bytes()
        secrets = [
            *(user.encode() for user in USERS),
            np.array([value, -value], np.float32).tobytes(),
            np.array([3_141_592_653]).tobytes(),
        ]
        assert [secret in content for secret in secrets] == [key is None] * len(secrets)


def test_equal_states_are_not_equal_in_an_encrypted_file(tmp_path: Path) -> None:
    store = open_store(tmp_path, key=KEY)
    save(store, 1, 5, 5)
    save(store, 2, 5, 5, kept=1)
    rows = store._file.connection.execute("SELECT state FROM states").fetchall()
    assert len(set(rows)) == 4


def test_a_key_is_needed_and_must_fit(tmp_path: Path) -> None:
    save(open_store(tmp_path / "sealed", key=KEY), 1, 1)
    save(open_store(tmp_path / "plain"), 1, 1)
    for folder, key, message in (
        ("sealed", None, "is encrypted; give its key file"),
        ("sealed", bytes(32), "the key does not fit"),
        ("plain", KEY, "is not encrypted; open it without a key file"),
    ):
        with pytest.raises(RunError, match=message) as error:
            open_store(tmp_path / folder, key=key)
        one_line(error)
    assert steps(open_store(tmp_path / "sealed", key=KEY), rounds(0), 1) == [1]


def test_key_files_are_random_and_only_the_owners(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_key(tmp_path / "keys" / name)
    one, two = (read_key(tmp_path / "keys" / name) for name in ("one", "two"))
    assert len(one) == len(two) == 32
    assert one != two
    assert stat.S_IMODE((tmp_path / "keys" / "one").stat().st_mode) == 0o600
    with pytest.raises(RunError, match="exists already; a key that is in use must not be replaced"):
        make_key(tmp_path / "keys" / "one")
    assert read_key(tmp_path / "keys" / "one") == one


@pytest.mark.parametrize("content", [b"", b"00" * 31, b"00" * 33, b"xy" * 32, bytes(range(255))])
def test_what_is_no_key_file_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(RunError, match="is not a key file; make one by: fedrecgel store make-key"):
        read_key(tmp_path / "key")
    with pytest.raises(RunError, match="cannot be read: No such file"):
        read_key(tmp_path / "none")


# --- being forgotten -------------------------------------------------------------------------


@pytest.mark.parametrize("key", [None, KEY], ids=["plain", "encrypted"])
def test_who_was_forgotten_starts_anew_whatever_round_is_named(
    tmp_path: Path, key: bytes | None
) -> None:
    store = open_store(tmp_path, key=key)
    save(store, 1, 1, 2)
    save(store, 5, 5, 6, kept=1)
    assert store.trained(rounds(0, 1, 2), rounds(5, 5, 0)).tolist() == [True, True, False]
    store.close()
    file = SqliteFile(path_in(tmp_path), key=key)
    assert forget_user(file, "bert") == ["one"]
    file.close()
    store = open_store(tmp_path, key=key)
    both = rounds(0, 1)
    assert store.trained(both, rounds(5, 5)).tolist() == [True, False]
    assert store.latest(both).tolist() == [5, 0]
    # The user trains again; the server still names the rounds from before.
    store.save(both, rounds(5, 5, 1, 1).reshape(2, 2), 6, states(7, 8))
    assert store.trained(both, rounds(6, 6)).tolist() == [True, True]
    assert steps(store, both, 6) == [7, 8]
    assert store.trained(both, rounds(1, 5)).tolist() == [True, False]  # a resume, the best round
    store.finish(both, rounds(5, 5), np.zeros((2, RANK_FIELDS), np.int64))
    state, found = store.load_chosen(both)
    assert (state["step"].tolist(), found.tolist()) == ([5], [True, False])
    # What comes later than the new start is kept, or lost.
    assert store.trained(rounds(1), rounds(7)).tolist() == [True]
    with pytest.raises(RunError, match="1 of 1 users"):
        store.load(rounds(1), rounds(7))


def test_a_run_that_goes_back_before_the_new_start_starts_anew_again(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    save(store, 4, 4)
    store.close()
    file = SqliteFile(path_in(tmp_path))
    forget_user(file, "anna")
    file.close()
    store = open_store(tmp_path)
    save(store, 9, 9, kept=4)
    assert store.trained(rounds(0), rounds(4)).tolist() == [False]  # resumed from round 4
    save(store, 5, 5, kept=4)
    assert store.trained(rounds(0), rounds(5)).tolist() == [True]
    assert steps(store, rounds(0), 5) == [5]


def test_a_lost_store_is_an_error_and_not_a_new_start(tmp_path: Path) -> None:
    save(open_store(tmp_path), 1, 1, 2, 3, 4)
    shutil.rmtree(tmp_path / "state")
    store = open_store(tmp_path)
    assert store.trained(EVERYONE, rounds(1, 1, 1, 1)).all()
    with pytest.raises(RunError, match="private state of 4 of 4 users is not in"):
        store.load(EVERYONE, rounds(1, 1, 1, 1))


SECRET = np.array([[1234.5678, -1234.5678]], dtype=np.float32)


def found_bytes(folder: Path) -> bool:
    files = path_in(folder).parent.iterdir()
    return any(SECRET.tobytes() in file.read_bytes() for file in files)


def test_the_bytes_of_who_was_forgotten_are_nowhere(tmp_path: Path) -> None:
    """After rounds among others, some of them still in the log; with a reader that stays."""
    many = 300
    ids = [f"user {n}" for n in range(many)]
    store = open_store(tmp_path, user_ids=ids)
    state = states(*range(many))
    state["user"][7] = torch.from_numpy(SECRET[0])
    for round in range(1, 8):
        store.save(np.arange(many), np.full((1, many), round - 1), round, state)
    ranks = np.zeros((many, RANK_FIELDS), np.int64)
    store.finish(np.arange(many), np.full(many, 7), ranks)
    assert found_bytes(tmp_path)
    reader = open_store(tmp_path, user_ids=ids, read_only=True)
    reader.load(rounds(7), rounds(7))
    forget_user(SqliteFile(path_in(tmp_path)), "user 7")
    assert not found_bytes(tmp_path)
    files = list(path_in(tmp_path).parent.iterdir())
    assert not any(re.search(rb"user 7(?!\d)", file.read_bytes()) for file in files)
    assert reader.trained(rounds(6, 7, 8), rounds(7, 7, 7)).tolist() == [True, False, True]
    assert steps(store, rounds(6, 8), 7) == [6, 8]
    assert list_experiments(SqliteFile(path_in(tmp_path)))[0].forgotten == 1


def test_a_reader_in_the_way_of_forgetting_is_one_line(tmp_path: Path) -> None:
    """The user is gone at once; what remains in the log goes with the next owner."""
    store = open_store(tmp_path)
    save(store, 1, float(SECRET[0, 0]), 2)
    reader = open_store(tmp_path, read_only=True)
    reader._file.connection.execute("BEGIN")
    reader._file.connection.execute("SELECT * FROM states").fetchone()
    store._file.connection.execute("PRAGMA busy_timeout = 50")
    with pytest.raises(RunError, match="is being read, so that its log cannot be emptied") as error:
        forget_user(store._file, "anna")
    one_line(error)
    with pytest.raises(RunError, match="holds nothing of user 'anna'"):
        forget_user(store._file, "anna")
    assert found_bytes(tmp_path)
    reader.close()
    store.close()
    open_store(tmp_path)
    assert not found_bytes(tmp_path)


FORGETTING = """
import random, signal, time
PATH, SECRET = Path({path!r}), np.float32(1234.5678)
random.seed(0)


def fill():
    store = SqliteStore(PATH, "one", "site-1", [f"user {{n}}" for n in range(200)], TEMPLATE)
    state = {{"user": torch.ones(200, 2), "step": torch.ones(200, dtype=torch.int64)}}
    state["user"][7] = float(SECRET)
    for round in (1, 2, 3):
        store.save(np.arange(200), np.zeros((1, 200), np.int64), round, state)
    store.close()


def forget():
    file = SqliteFile(PATH)
    forget_user(file, "user 7")
    file.close()


fill()
start = time.monotonic()
forget()
seconds = time.monotonic() - start
for kill in range({kills}):
    fill()
    child = os.fork()
    if not child:
        forget()
        os._exit(0)
    time.sleep(random.uniform(0, 1.2 * seconds))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    file = SqliteFile(PATH)
    kept = file.connection.execute("SELECT count(*) FROM states WHERE user = 'user 7'")
    (held,) = kept.fetchone()
    there = any(SECRET.tobytes() in path.read_bytes() for path in PATH.parent.iterdir())
    assert there == bool(held), (kill, there, held)
    print("kept" if held else "gone")
    file.close()
"""


def test_a_kill_while_forgetting_is_made_good_by_the_next_owner(
    tmp_path: Path, elsewhere: Elsewhere
) -> None:
    """All of the person is there still, or nothing."""
    printed = elsewhere(FORGETTING.format(path=str(path_in(tmp_path)), kills=12))
    assert len(printed.split()) == 12
