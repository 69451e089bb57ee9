"""`fedrecgel deploy`: what is refused before anything starts, in one line with code 2."""

import shlex
import shutil
from pathlib import Path

import pytest

from fedrecgel import prepare
from fedrecgel.cli import main
from fedrecgel.cli.deploy_local import another_run
from fedrecgel.deploy.certificates import Authority
from fedrecgel.deploy.control import Operator
from fedrecgel.deploy.processes import free_ports


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "data"
    prepare("synthetic", folder, users=40)
    return folder


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["deploy", *arguments]) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: ")
    assert line.count("\n") == 1
    return line


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "rouns=3"], "rouns"),
        (["--rounds", "0"], "rounds"),
        (["--sites", "41"], "40 users cannot be split over 41 sites"),
        (["--sites", "65"], "--sites must be from 1 to 64"),
        (["--data", "none"], "none is not a prepared data set"),
        (["--resume"], "no run to go on with; leave --resume out"),
        (["--resume", "--overwrite"], "--resume goes on with the run, --overwrite removes it"),
    ],
)
def test_local_refuses_before_anything_starts(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    out = tmp_path / "out"
    line = refused(["local", "--data", str(data), "--out", str(out), *options], capsys)
    assert said in line
    assert not out.exists()


@pytest.mark.parametrize("name", ["o'b", "o'b/below", "o\nb"])
def test_local_refuses_a_name_that_flower_cannot_write_before_anything_is_written(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    line = refused(["local", "--data", str(data), "--out", str(tmp_path / name)], capsys)
    assert "'--out' cannot be given to Flower" in line
    assert list(tmp_path.iterdir()) == []


def test_run_names_a_setting_that_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, app = str(tmp_path / "keys"), str(Path(__file__).parents[2])
    assert main(["deploy", "certificates", "a", "--out", keys]) == 0
    capsys.readouterr()
    where = ["--superlink", "127.0.0.1:1", "--keys", keys, "--app", app]
    line = refused(["run", *where, "rouns=5"], capsys)
    assert "unknown setting 'rouns'; did you mean 'rounds'" in line


def test_local_does_not_run_over_a_run(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out" / "run").mkdir(parents=True)
    (tmp_path / "out" / "run" / "config.json").write_text(
        '{"format": 1, "algorithm": "x", "settings": {}}'
    )
    line = refused(["local", "--data", str(data), "--out", str(tmp_path / "out")], capsys)
    assert "--overwrite" in line
    more = ["--data", str(data), "--out", str(tmp_path / "out")]
    (tmp_path / "out" / "run" / "checkpoints" / "00000004").mkdir(parents=True)
    assert "00000004 is damaged" in refused(["local", *more, "--resume"], capsys)
    inside = shutil.copytree(data, tmp_path / "out" / "run" / "data")
    words = ["local", "--data", str(inside), *more[2:], "--overwrite"]
    assert f"would replace {inside}, which is read" in refused(words, capsys)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run"]


def test_certificates_are_made_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["certificates", "a", "b", "--out", str(tmp_path), "--superlink-name", "10.0.0.1"]
    assert main(["deploy", *command]) == 0
    assert "give each machine its own folder" in capsys.readouterr().out
    assert "--existing renew" in refused(command, capsys)
    assert main(["deploy", *command, "--existing", "renew"]) == 0


@pytest.mark.parametrize("where", ["/proc/nothing", "file", "file/below"])
@pytest.mark.parametrize(
    "command",
    [
        ["local", "--data", "DATA"],
        ["local", "--data", "DATA", "--resume"],
        ["compose", "--data", "DATA"],
        ["compose"],
        ["certificates", "a"],
    ],
    ids=" ".join,
)
def test_a_place_that_is_no_folder_is_one_line(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], where: str
) -> None:
    (tmp_path / "file").write_text("mine")
    words = [str(data) if word == "DATA" else word for word in command]
    out = str(tmp_path / where)
    assert where.partition("/")[0] in refused([*words, "--out", out], capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "command",
    [
        ["check", "--superlink", "h:1", "--ca", "nothing"],
        ["check", "--superlink", "h:1", "--ca", "/proc"],
        ["set-up", "a", "--keys", "/proc/nothing"],
        ["start", "superlink", "--keys", "nothing", "--database", "x"],
        ["register", "a", "--superlink", "h:1", "--keys", "nothing"],
        ["run", "--superlink", "h:1", "--keys", "nothing", "--app", "nothing"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_file_that_cannot_be_read_is_one_line(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nothing" in refused(command, capsys) or "/proc" in command


def test_register_takes_the_folder_that_certificates_makes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["deploy", "certificates", "a", "--out", str(tmp_path / "keys")]) == 0
    (tmp_path / "keys" / "b.pub").write_text("sent by b")
    keys: list[Path] = []
    monkeypatch.setattr(Operator, "register", lambda self, key, site: keys.append(key) or True)
    words = ["register", "a", "b", "--superlink", "h:1", "--keys", str(tmp_path / "keys")]
    assert main(["deploy", *words]) == 0
    assert keys == [tmp_path / "keys" / "a" / "node.pub", tmp_path / "keys" / "b.pub"]
    capsys.readouterr()
    assert "neither c.pub nor c/node.pub" in refused(["register", "c", *words[3:]], capsys)


@pytest.mark.flower
@pytest.mark.parametrize("named", [True, False])
def test_connections_of_the_users_own_stay(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    named: bool,
) -> None:
    own = tmp_path / ".flwr" / "config.toml"
    own.parent.mkdir()
    own.write_text('[superlink.mine]\naddress = "fl.example.org:8000"\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "scratch").mkdir()
    if named:
        monkeypatch.setenv("FLWR_HOME", str(own.parent))
    else:
        monkeypatch.delenv("FLWR_HOME", raising=False)
    keys = str(tmp_path / "keys")
    assert main(["deploy", "certificates", "a", "--out", keys]) == 0
    capsys.readouterr()
    where = ["--superlink", f"127.0.0.1:{free_ports(1)[0]}", "--keys", keys]
    assert "could not be registered" in refused(["register", "a", *where], capsys)
    assert [path.name for path in own.parent.iterdir()] == ["config.toml"]
    assert own.read_text() == '[superlink.mine]\naddress = "fl.example.org:8000"\n'
    assert list((tmp_path / "scratch").iterdir()) == []


def test_check_says_why_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "certificates", "a", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    port, ca = free_ports(1)[0], str(tmp_path / "a" / "ca.crt")
    line = refused(["check", "--superlink", f"127.0.0.1:{port}", "--ca", ca], capsys)
    assert "Connection refused" in line
    assert "HOST:PORT" in refused(["check", "--superlink", "here", "--ca", ca], capsys)


def test_an_address_that_cannot_be_is_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    Authority.create(tmp_path)
    keys = ["--keys", str(tmp_path)]
    for name in ("tls.crt", "tls.key", "superexec.secret", "node"):
        (tmp_path / name).touch()
    check = ["check", "--superlink", "a..b:9092", "--ca", str(tmp_path / "ca.crt")]
    assert "'a..b' is no name of a machine" in refused(check, capsys)
    node = ["--superlink", "a..b", "--site", "s", "--interactions", "i", "--state", "d"]
    said = refused(["start", "supernode", *node, *keys], capsys)
    assert "'a..b' is no name of a machine" in said
    said = refused(["start", "superexec", "--address", "127.0.0.1", *keys], capsys)
    assert "'127.0.0.1' is no address; give HOST:PORT" in said
    operator = ["--superlink", "a..b:8000", *keys]
    (tmp_path / "s.pub").touch()
    assert "is no name of a machine" in refused(["register", "s", *operator], capsys)


def test_the_command_of_a_further_run_survives_a_shell_and_flowers_parser() -> None:
    parse = pytest.importorskip("flwr.common.config").parse_config_args
    told = another_run(Path("/my sites/it's & $HOME"), Path("/a home"))
    words = shlex.split(told)
    assert words[0] == "FLWR_HOME=/a home"
    assert words[3:6] == ["/my sites/it's & $HOME/app", "deployment", "--stream"]
    assert parse([words[7]]) == {
        "catalogue": "/my sites/it's & $HOME/sites/catalogue.json",
        "out": "/my sites/it's & $HOME/run-2",
        "rounds": 5,
    }
