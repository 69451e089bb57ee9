"""``fedrecgel store``: what people can ask of a site, and the operator's one line."""

import json
import shutil
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from fedrecgel.cli import main
from fedrecgel.client.sealing import read_key
from fedrecgel.client.sqlite_store import SqliteStore
from fedrecgel.client.store import RANK_FIELDS
from fedrecgel.common.data.dataset import by_name, make_dataset
from fedrecgel.common.data.store import write_data_set
from fedrecgel.common.json_file import write_json

Capture = pytest.CaptureFixture[str]
ABOUT = json.dumps({"id": "second", "algorithm": "fedncf", "settings": {"seed": 3}})


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Options of a store with two experiments: anna and bert in both, cleo in the first only."""
    key, options = None, ["--state", str(tmp_path / "state")]
    if request.param:
        assert main(["store", "make-key", str(tmp_path / "key")]) == 0
        key = read_key(tmp_path / "key")
        options += ["--key-file", str(tmp_path / "key")]
    for experiment, about, users in (("first", "", 3), ("second", ABOUT, 2)):
        store = SqliteStore(
            tmp_path / "state" / "private.sqlite",
            experiment,
            "site-1",
            ("anna", "bert", "cleo"),
            {"user": torch.zeros(2)},
            key,
            about=about,
        )
        everyone = np.arange(users)
        for round in (1, 2, 3):
            values = torch.arange(users)[:, None] + torch.tensor([round, 0.5])
            kept = np.tile([[round - 1], [1]], users)
            store.save(everyone, kept, round, {"user": values})
        if experiment == "first":
            ranks = np.zeros((users, RANK_FIELDS), np.int64)
            store.finish(everyone, np.full(users, 2), ranks)
        store.close()
    return options


def printed(words: list[str], capfd: Capture) -> str:
    capfd.readouterr()
    assert main(["store", *words]) == 0
    found = capfd.readouterr()
    assert found.err == ""
    return found.out


def assert_refused(words: list[str], message: str, capfd: Capture) -> None:
    capfd.readouterr()
    assert main(["store", *words]) == 2
    found = capfd.readouterr()
    assert found.out == ""
    assert found.err.startswith("error: ")
    assert found.err.count("\n") == 1
    assert message in found.err


def test_list_says_what_is_there(site: list[str], capfd: Capture) -> None:
    found = json.loads(printed(["list", *site, "--json"], capfd))
    assert found["site"] == "site-1"
    assert found["encrypted"] == ("--key-file" in site)
    assert found["bytes"] > 10_000
    second, first = found["experiments"]
    assert (second["experiment"], second["algorithm"], second["users"]) == ("second", "fedncf", 2)
    assert (first["experiment"], first["algorithm"], first["users"]) == ("first", "", 3)
    assert (first["rounds"], first["states"], first["chosen"]) == ([1, 3], 9, 3)
    assert first["finished"] is not None
    assert second["finished"] is None
    text = printed(["list", *site], capfd)
    assert text.count("\n") == 3
    assert "second  fedncf  2 users  rounds 1..3" in text


def test_list_needs_no_key_and_tells_no_user(site: list[str], capfd: Capture) -> None:
    assert "anna" not in printed(["list", *site[:2]], capfd)


def test_list_says_what_is_kept_of_a_user(site: list[str], capfd: Capture) -> None:
    found = json.loads(printed(["list", *site, "--user", "cleo", "--json"], capfd))
    assert found == [{"experiment": "first", "rounds": [1, 2, 3], "chosen": 2}]
    text = printed(["list", *site, "--user", "anna"], capfd)
    assert text == "second  rounds 1, 2, 3  chosen none\nfirst  rounds 1, 2, 3  chosen 2\n"


@pytest.mark.parametrize(
    ("more", "experiment", "round", "value"),
    [
        ([], "second", 3, 4.0),  # used last; nothing is chosen: the latest
        (["--experiment", "first"], "first", 2, 3.0),  # the chosen one
        (["--experiment", "first", "--round", "1"], "first", 1, 2.0),
    ],
)
def test_export_writes_the_users_tensors_and_what_they_are(
    site: list[str],
    tmp_path: Path,
    capfd: Capture,
    more: list[str],
    experiment: str,
    round: int,
    value: float,
) -> None:
    out = tmp_path / "bert.safetensors"
    printed(["export", *site, "--user", "bert", "--out", str(out), *more], capfd)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    with safe_open(out, "pt") as file:
        metadata = file.metadata()
        assert list(file.keys()) == ["user"]
        assert file.get_tensor("user").tolist() == [value, 1.5]
    about = metadata.pop("about")
    assert json.loads(about) == (json.loads(ABOUT) if experiment == "second" else {})
    assert metadata == {
        "format": "fedrecgel-private-state 1",
        "user": "bert",
        "site": "site-1",
        "experiment": experiment,
        "round": str(round),
    }
    words = ["export", *site, "--user", "anna", "--out", str(out)]
    assert_refused(words, "exists already; choose another --out or add --overwrite", capfd)
    assert json.loads(printed([*words, "--overwrite", "--json"], capfd))["user"] == "anna"


def test_forget_takes_a_user_out_of_every_experiment(site: list[str], capfd: Capture) -> None:
    text = printed(["forget", *site, "--user", "anna"], capfd)
    assert text == "user forgotten: gone from second, first\n"
    for action in (["list"], ["forget"], ["export", "--out", "none"]):
        assert_refused([*action, *site, "--user", "anna"], "holds nothing of user 'anna'", capfd)
    found = json.loads(printed(["list", *site, "--json"], capfd))["experiments"]
    assert [(one["users"], one["forgotten"]) for one in found] == [(1, 1), (2, 1)]
    assert "1 forgotten" in printed(["list", *site], capfd)


def test_forget_takes_a_user_out_of_one_experiment(site: list[str], capfd: Capture) -> None:
    words = ["forget", *site, "--user", "anna", "--experiment", "second", "--json"]
    assert json.loads(printed(words, capfd))["experiments"] == ["second"]
    assert printed(["list", *site, "--user", "anna"], capfd).startswith("first  rounds 1, 2, 3")
    message = "holds nothing of user 'anna' in experiment second"
    assert_refused(words, message, capfd)


@pytest.mark.parametrize(("run", "gone"), [("first", True), ("second", False)])
def test_forget_takes_a_user_out_of_what_was_prepared_for_runs_that_ended(
    site: list[str], run: str, gone: bool, capfd: Capture
) -> None:
    state = Path(site[1])
    folder, names = state / "prepared" / "key", ["anna", "dora"]
    data = make_dataset([[0, 1], [2]], [2, 1], [3, 4], 5, user_ids=names)
    write_data_set(folder, data.manifest, by_name(data.arrays()), {})
    (state / "runs").mkdir()
    write_json(state / "runs" / f"{run}.json", {"data": "key"})
    text = printed(["forget", *site, "--user", "anna"], capfd)
    assert text.startswith("user forgotten: gone from ")
    assert folder.exists() is not gone
    if gone:
        assert text.rstrip().endswith(str(folder))
    else:
        assert f"still in {folder}, which a run uses that has not ended" in text
        assert_refused(["forget", *site, "--user", "dora"], "holds nothing of user 'dora'", capfd)


def test_who_is_only_in_what_was_prepared_is_forgotten_there(
    site: list[str], capfd: Capture
) -> None:
    folder = Path(site[1]) / "prepared" / "key"
    data = make_dataset([[0, 1]], [2], [3], 5, user_ids=["dora"])
    write_data_set(folder, data.manifest, by_name(data.arrays()), {})
    words = ["forget", *site, "--user", "dora"]
    found = json.loads(printed([*words, "--json"], capfd))
    assert found["experiments"] == []
    assert found["prepared"] == {"removed": [str(folder)], "kept": []}
    assert_refused(words, "holds nothing of user 'dora'", capfd)


def test_forget_takes_out_a_whole_experiment(site: list[str], capfd: Capture) -> None:
    words = ["forget", *site, "--experiment", "first"]
    assert printed(words, capfd) == "experiment forgotten: gone from first\n"
    found = json.loads(printed(["list", *site, "--json"], capfd))["experiments"]
    assert [one["experiment"] for one in found] == ["second"]
    assert_refused(words, "holds nothing of experiment first", capfd)


def test_what_cannot_be_done_is_one_line(site: list[str], tmp_path: Path, capfd: Capture) -> None:
    out = ["--out", str(tmp_path / "out")]
    for words, message in (
        (["list", *site, "--user", "zoe"], "holds nothing of user 'zoe'"),
        (["export", *site, "--user", "zoe", *out], "holds nothing of user 'zoe'"),
        (["forget", *site, "--user", "zoe"], "holds nothing of user 'zoe'"),
        (["forget", *site], "give --user ID, --experiment ID, or both"),
        (
            ["export", *site, "--user", "cleo", "--experiment", "second", *out],
            "holds no state of user 'cleo' in experiment second",
        ),
        (
            ["export", *site, "--user", "cleo", "--round", "9", *out],
            "holds rounds 1, 2, 3 of user 'cleo', not 9",
        ),
        (
            ["export", *site, "--user", "cleo", "--out", str(tmp_path / "no" / "out")],
            "cannot be written: No such file",
        ),
        (["export", *site, "--user", "cleo", "--out", "."], ". is a folder; choose another"),
        (["backup", *site, "--out", "..", "--overwrite"], ".. is a folder; choose another"),
        (["list", "--state", str(tmp_path / "elsewhere")], "elsewhere is not there"),
        (["list", "--state", str(tmp_path)], "private.sqlite is not there"),
    ):
        assert_refused(words, message, capfd)
    assert not (tmp_path / "out").exists()
    if "--key-file" in site:
        words = ["forget", *site[:2], "--user", "anna"]
        assert_refused(words, "is encrypted; give its key file", capfd)
        assert_refused(["make-key", site[3]], "exists already", capfd)


def test_a_backup_is_the_whole_store(site: list[str], tmp_path: Path, capfd: Capture) -> None:
    copy = tmp_path / "copy.sqlite"
    assert "still in this copy" in printed(["backup", *site[:2], "--out", str(copy)], capfd)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    lists = [
        json.loads(printed(["list", "--state", where, "--json"], capfd))["experiments"]
        for where in (site[1], str(copy))
    ]
    assert lists[0] == lists[1]
    words = ["export", "--state", str(copy), *site[2:], "--user", "cleo", "--out"]
    printed([*words, str(tmp_path / "cleo")], capfd)
    assert_refused(["backup", *site[:2], "--out", str(copy)], "exists already", capfd)
    found = printed(["backup", *site[:2], "--out", str(copy), "--overwrite", "--json"], capfd)
    assert json.loads(found) == {"file": str(copy), "bytes": copy.stat().st_size}
    nowhere = str(tmp_path / "no" / "copy")
    assert_refused(["backup", *site[:2], "--out", nowhere], "cannot be written", capfd)


def test_what_the_store_holds_is_never_written_over(
    site: list[str], tmp_path: Path, capfd: Capture
) -> None:
    state, other = Path(site[1]), tmp_path / "other"
    (state / "site.json").write_text('{"site": "site-1"}')
    shutil.copytree(state, other)
    (tmp_path / "link").symlink_to(state / "private.sqlite")
    before = contents(tmp_path)
    names = ["private.sqlite", "private.sqlite-wal", "site.json", "new", "published/new", "."]
    outs = [state / name for name in names] + [tmp_path / "link", other / "private.sqlite"]
    outs += [Path(site[3])] if "--key-file" in site else []
    for action in (["backup"], ["export", "--user", "anna"]):
        for out in outs:
            words = [*action, *site, "--out", str(out), "--overwrite"]
            assert_refused(words, "choose another --out", capfd)
    lone = ["--state", str(state / "private.sqlite"), *site[2:]]
    words = ["backup", *lone, "--out", str(state / "copy"), "--overwrite"]
    assert_refused(words, "choose another --out", capfd)
    assert before.items() <= contents(tmp_path).items()  # a reader adds SQLite's own


def test_a_copy_may_lie_beside_what_is_taken_out_of_it(
    site: list[str], tmp_path: Path, capfd: Capture
) -> None:
    copy = tmp_path / "copy.sqlite"
    printed(["backup", *site, "--out", str(copy)], capfd)
    words = ["export", "--state", str(copy), *site[2:], "--user", "anna", "--overwrite", "--out"]
    for name in ("copy.sqlite", "copy.sqlite-wal", "copy.sqlite-shm"):
        assert_refused([*words, str(tmp_path / name)], "which is read", capfd)
    printed([*words, str(tmp_path / "anna")], capfd)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("where", ["pages", "a state"])
def test_a_damaged_store_is_not_backed_up_over_a_good_copy(
    site: list[str], tmp_path: Path, capfd: Capture, where: str
) -> None:
    copy, store = tmp_path / "copy.sqlite", Path(site[1]) / "private.sqlite"
    words = ["backup", *site, "--out", str(copy)]
    printed(words, capfd)
    before = copy.read_bytes()
    with sqlite3.connect(store) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        if where == "a state":
            text = "UPDATE states SET state = zeroblob(length(state)) WHERE round = 2"
            connection.execute(text)
    connection.close()
    if where == "pages":
        with store.open("r+b") as file:
            file.seek(2 * 16384)
            file.write(bytes(range(256)) * 64 * 3)
    assert_refused([*words, "--overwrite"], f"{store} is damaged", capfd)
    assert copy.read_bytes() == before
    assert sorted(path.name for path in tmp_path.glob("*copy*")) == ["copy.sqlite"]


def test_make_key_says_what_to_do_with_it(tmp_path: Path, capfd: Capture) -> None:
    assert "keep a copy elsewhere" in printed(["make-key", str(tmp_path / "key")], capfd)
    found = json.loads(printed(["make-key", str(tmp_path / "two"), "--json"], capfd))
    assert found == {"file": str(tmp_path / "two")}


def test_make_key_below_a_file_says_that_it_cannot(tmp_path: Path, capfd: Capture) -> None:
    (tmp_path / "file").touch()
    words = ["make-key", str(tmp_path / "file" / "key")]
    assert_refused(words, f"{tmp_path}/file/key cannot be written", capfd)


def test_an_action_is_needed(capfd: Capture) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["store"])
    assert stopped.value.code == 2
    assert capfd.readouterr().err.count("\n") == 1


def test_a_damaged_store_is_one_line_whatever_is_asked(
    site: list[str], tmp_path: Path, capfd: Capture
) -> None:
    """Bytes of 30 copies are written over or cut off; no call ends but with 0 or with its line."""
    content = (tmp_path / "state" / "private.sqlite").read_bytes()
    written = np.flatnonzero(np.frombuffer(content, np.uint8))
    folder = tmp_path / "copy"
    folder.mkdir()
    options = ["--state", str(folder), *site[2:]]
    out = ["--out", str(tmp_path / "out"), "--overwrite"]
    anna = ["--user", "anna"]
    actions = (
        ["list"],
        ["list", *anna],
        ["export", *anna, *out],
        ["backup", *out],
        ["forget", *anna],
    )
    chance = np.random.default_rng(5)
    codes = set()
    for number in range(30):
        damaged = bytearray(content)
        for place in chance.choice(written, chance.choice([1, 3, 20])):
            damaged[place] = chance.integers(256)
        if number % 10 == 0:
            del damaged[chance.integers(len(damaged)) :]
        for action in actions:
            for part in folder.iterdir():
                part.unlink()
            (folder / "private.sqlite").write_bytes(damaged)
            code = main(["store", *action, *options])
            codes.add(code)
            told = capfd.readouterr().err
            assert code in (0, 2)
            assert told.count("\n") == (code == 2), told
    assert codes == {0, 2}


@pytest.mark.parametrize(
    ("change", "actions"),
    [
        ("UPDATE meta SET value = CAST(x'ff' AS TEXT) WHERE name = 'site'", "list export forget"),
        ("UPDATE meta SET value = 3 WHERE name = 'site'", "list export backup forget"),
        ("DELETE FROM meta", "list export backup forget"),
        ("PRAGMA user_version = 0", "list export backup forget"),
        ("UPDATE experiments SET id = CAST(x'ff' AS TEXT)", "list export forget"),
        ("UPDATE experiments SET saved = 'soon'", "list"),
        ("UPDATE experiments SET saved = 1e300", "list"),
        ("UPDATE experiments SET about = x'00'", "list export"),
        ("UPDATE experiments SET template = 'a'", "export"),
        ('UPDATE experiments SET template = \'{"user": [[2], "<fG"]}\'', "export"),
        ('UPDATE experiments SET template = \'{"user": [[3], "<f4"]}\'', "export"),
        ("UPDATE states SET state = 'text'", "export backup"),
        ("UPDATE states SET round = -round", "list export forget"),
        ("UPDATE users SET chosen = 'two'", "export forget"),
    ],
)
def test_a_value_that_nobody_wrote_is_damage(
    site: list[str], tmp_path: Path, capfd: Capture, change: str, actions: str
) -> None:
    file = sqlite3.connect(tmp_path / "state" / "private.sqlite")
    file.execute(change if "experiments" not in change else f"{change} WHERE number = 2")
    file.commit()
    file.close()
    out = ["--out", str(tmp_path / "out")]
    more = {"export": ["--user", "anna", *out], "backup": out, "forget": ["--user", "anna"]}
    for action in actions.split():
        assert_refused([action, *more.get(action, []), *site], "is damaged", capfd)


@pytest.mark.parametrize("database", [False, True])
def test_a_file_of_something_else_keeps_its_mode_and_gets_no_lock(
    tmp_path: Path, capfd: Capture, database: bool
) -> None:
    other = tmp_path / "other"
    if database:
        file = sqlite3.connect(other)
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("CREATE TABLE theirs (a)")
        file.close()
    else:
        other.write_text("import this\n")
    other.chmod(0o644)
    before = contents(tmp_path)
    for words in (["list"], ["forget", "--user", "anna"]):
        assert_refused([*words, "--state", str(other)], "is not a private store", capfd)
    assert contents(tmp_path) == before
    assert stat.S_IMODE(other.stat().st_mode) == 0o644
