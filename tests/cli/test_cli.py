"""The command line: exit codes, one line for what a user can mend, and nothing left behind."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import fedrecgel
from fedrecgel.cli import main
from fedrecgel.common import presets
from fedrecgel.common.algorithms.registry import ALGORITHMS
from fedrecgel.common.config import setting_help
from fedrecgel.common.data.dataset import Dataset

Capture = pytest.CaptureFixture[str]
COMMANDS = ("demo", "prepare", "simulate", "recommend", "evaluate")
QUICK = ["--rounds", "2", "--preset", "paper", "--log", "none"]
QUICK += ["--set", "scorer=dot", "--set", "embedding-dim=4"]


@pytest.fixture(scope="module")
def finished(small_data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "run"
    assert main(["simulate", "--data", str(small_data.path), "--out", str(out), *QUICK]) == 0
    return out


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def assert_refused(words: list[str], message: str, capfd: Capture) -> None:
    """Exit code 2, one line on stderr with the message, nothing on stdout, no traceback."""
    capfd.readouterr()
    assert main(words) == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.endswith("\n")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert "Traceback" not in printed.err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--set", "server-l=1"], "unknown setting 'server-l' for fedrecgel; did you mean"),
        (["--set", "server-lr=fast"], "setting 'server-lr' needs a value of type float"),
        (["--set", "private-steps=0"], "setting 'private-steps' must be at least 1, not 0"),
        (["--set", "scorer=dott"], "setting 'scorer' cannot be 'dott'; choose from neumf, dot"),
        (["--set", "server-lr"], "--set needs NAME=VALUE, not 'server-lr'"),
        (["--set", "=3"], "--set needs NAME=VALUE, not '=3'"),
        (["--set", "seed=1", "--seed", "2"], "setting 'seed' is given twice"),
        (["--set", "local-lr=1", "--set", "local-lr=2"], "setting 'local-lr' is given twice"),
        (["--set", "local-lr=1", "--set", "local_lr=2"], "setting 'local-lr' is given twice"),
        (["--set", "rho-shared=1", "--algorithm", "fedncf"], "unknown setting 'rho-shared'"),
        (["--algorithm", "fedrecgl"], "unknown algorithm 'fedrecgl'; did you mean 'fedrecgel'?"),
        (
            ["--dtype", "float16"],
            "setting 'dtype' cannot be 'float16'; choose from float32, float64",
        ),
        (["--rounds", "0"], "setting 'rounds' must be at least 1, not 0"),
        (["--nodes", "25"], "nodes must be between 1 and the number of users, 24, not 25"),
        (["--nodes", "0"], "nodes must be between 1"),
        (["--set", "num-negatives=100000"], "setting 'num-negatives' must be between 0 and 1000"),
    ],
)
def test_a_wrong_argument_of_simulate_is_one_line_and_leaves_nothing(
    small_data: Dataset, tmp_path: Path, capfd: Capture, more: list[str], message: str
) -> None:
    words = ["simulate", "--data", str(small_data.path), "--out", str(tmp_path / "run")]
    assert_refused([*words, *more], message, capfd)
    assert list(tmp_path.iterdir()) == []


def test_missing_data_are_one_line_and_leave_nothing(tmp_path: Path, capfd: Capture) -> None:
    words = ["simulate", "--data", str(tmp_path / "none"), "--out", str(tmp_path / "run")]
    assert_refused(words, str(tmp_path / "none"), capfd)
    (tmp_path / "empty").mkdir()
    words = ["simulate", "--data", str(tmp_path / "empty"), "--out", str(tmp_path / "run")]
    assert_refused(words, str(tmp_path / "empty"), capfd)
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_damaged_data_are_one_line_and_leave_nothing(
    small_data: Dataset, tmp_path: Path, capfd: Capture
) -> None:
    assert small_data.path is not None
    data = shutil.copytree(small_data.path, tmp_path / "data")
    (data / "arrays" / "train_items.npy").write_bytes(b"")
    words = ["simulate", "--data", str(data), "--out", str(tmp_path / "run"), *QUICK]
    assert_refused(words, "train_items.npy is damaged", capfd)
    assert not (tmp_path / "run").exists()


def test_a_run_that_cannot_start_leaves_nothing(
    small_data: Dataset, tmp_path: Path, capfd: Capture
) -> None:
    """An error of the first round comes after the folder was made."""
    words = ["simulate", "--data", str(small_data.path), "--out", str(tmp_path / "run"), *QUICK]
    capfd.readouterr()
    assert main([*words, "--set", "device=tpu"]) == 2
    printed = capfd.readouterr()
    last = printed.err.strip().splitlines()[-1]
    assert last.startswith("error: ")
    assert "choose from cpu, cuda, auto" in last
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_in_use_is_left_alone(
    small_data: Dataset, finished: Path, tmp_path: Path, capfd: Capture
) -> None:
    before = files(finished)
    words = ["simulate", "--data", str(small_data.path), *QUICK]
    assert_refused([*words, "--out", str(finished)], "add --overwrite", capfd)
    assert files(finished) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("mine")
    for more in ([], ["--overwrite"]):
        assert_refused([*words, "--out", str(tmp_path / "other"), *more], "not a run", capfd)
    assert (tmp_path / "other" / "file").read_text() == "mine"
    assert_refused([*words, "--out", str(tmp_path / "other" / "file")], "is a file", capfd)


def test_overwrite_replaces_runs_alone(
    small_data: Dataset, finished: Path, tmp_path: Path, capfd: Capture
) -> None:
    """Many programs have a config.json; a folder of theirs is never removed."""
    other = tmp_path / "other"
    other.mkdir()
    words = ["simulate", "--data", str(small_data.path), *QUICK, "--overwrite"]
    for text in ('{"format": 1, "name": "my app"}', "[1]", "{"):
        (other / "config.json").write_text(text)
        assert_refused([*words, "--out", str(other)], "not a run", capfd)
        assert (other / "config.json").read_text() == text
    run = shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    assert main([*words, "--out", str(tmp_path / "link")]) == 0
    assert (tmp_path / "link").is_symlink()
    assert (run / "result.json").is_file()


def test_nothing_replaces_what_it_reads(
    small_data: Dataset, finished: Path, tmp_path: Path, capfd: Capture
) -> None:
    run = shutil.copytree(finished, tmp_path / "run")
    data = shutil.copytree(str(small_data.path), run / "data")
    before = files(run)
    words = ["simulate", "--data", str(data), *QUICK, "--overwrite", "--out", str(run)]
    assert_refused(words, f"would replace {data}, which is read", capfd)
    source = data / "interactions.parquet"
    words = ["prepare", str(source), "--out", str(data), "--overwrite"]
    assert_refused(words, f"would replace {source}, which is read", capfd)
    words = ["export", "--run", str(run), "--user", "Quixote-00-Zx", "--overwrite", "--out"]
    for out in (run / "model.safetensors", Path(str(small_data.path)) / "manifest.json"):
        assert_refused([*words, str(out)], "which is read", capfd)
    assert files(run) == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--user", "nobody"], "no user 'nobody' among the 24 users"),
        (["--user", "Quixote-00-Zx", "--k", "0"], "--k must be at least 1, not 0"),
        (["--user", "Quixote-00-Zx", "--k", "-2"], "--k must be at least 1, not -2"),
        ([], "give --user ID"),
        (["--user", "Quixote-00-Zx", "--file", "x"], "give --user ID"),
        (["--file", "/nowhere/items.txt"], "cannot read /nowhere/items.txt"),
    ],
)
def test_a_wrong_argument_of_recommend_is_one_line(
    finished: Path, capfd: Capture, more: list[str], message: str
) -> None:
    before = files(finished)
    assert_refused(["recommend", "--run", str(finished), *more], message, capfd)
    assert files(finished) == before


@pytest.mark.parametrize("command", ["recommend", "evaluate"])
def test_a_damaged_run_is_one_line(
    finished: Path, tmp_path: Path, capfd: Capture, command: str
) -> None:
    more = ["--user", "Quixote-00-Zx"] if command == "recommend" else []
    assert_refused([command, "--run", str(tmp_path / "none"), *more], "not a run folder", capfd)
    for name, content in {
        "config.json": b"{",
        "result.json": b"",
        "model.safetensors": b"123",
        "private/store.json": b"",
    }.items():
        run = shutil.copytree(finished, tmp_path / f"{command}-{name.replace('/', '-')}")
        (run / name).write_bytes(content)
        assert_refused([command, "--run", str(run), *more], str(run), capfd)


@pytest.mark.flower
def test_json_of_simulate_is_result_json(
    small_data: Dataset, tmp_path: Path, capfd: Capture
) -> None:
    capfd.readouterr()
    words = ["simulate", "--data", str(small_data.path), "--out", str(tmp_path / "run"), "--json"]
    assert main([*words, *QUICK]) == 0
    printed = json.loads(capfd.readouterr().out)
    assert printed == json.loads((tmp_path / "run" / "result.json").read_text())


def test_a_run_that_stops_early_says_how_many_rounds_it_trained(
    small_data: Dataset, tmp_path: Path, capfd: Capture
) -> None:
    words = ["simulate", "--data", str(small_data.path), "--out", str(tmp_path / "run")]
    words += ["--log", "none", "--rounds", "40", "--set", "embedding-dim=4"]
    words += ["--set", "evaluate-every=1", "--set", "patience=1"]
    assert main(words) == 0
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    trained = json.loads((tmp_path / "run" / "result.json").read_text())["round"]["trained"]
    assert trained == json.loads(lines[-1])["round"] < 40


def test_json_of_recommend_and_evaluate_parse(finished: Path, capfd: Capture) -> None:
    capfd.readouterr()
    assert main(["recommend", "--run", str(finished), "--user", "Quixote-00-Zx", "--json"]) == 0
    found = json.loads(capfd.readouterr().out)
    assert len(found) == 10
    assert all(set(entry) == {"item", "score"} for entry in found)
    assert main(["evaluate", "--run", str(finished), "--json"]) == 0
    again: dict[str, Any] = json.loads(capfd.readouterr().out)
    result = json.loads((finished / "result.json").read_text())
    for ranking in ("sampled", "full"):
        for name, cell in result["test"][ranking].items():
            assert again["test"][ranking][name]["value"] == pytest.approx(cell["value"], abs=1e-9)


def test_tables_and_lists_are_printed_for_people(finished: Path, capfd: Capture) -> None:
    capfd.readouterr()
    assert main(["evaluate", "--run", str(finished)]) == 0
    assert "FULL" in capfd.readouterr().out
    assert main(["recommend", "--run", str(finished), "--user", "Quixote-00-Zx", "--k", "3"]) == 0
    assert len(capfd.readouterr().out.strip().splitlines()) == 3


def test_somebody_new_brings_a_file(finished: Path, tmp_path: Path, capfd: Capture) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("i1\ni2\n\ni3\n")
    capfd.readouterr()
    words = ["recommend", "--run", str(finished), "--file", str(mine), "--json"]
    assert main([*words, "--k", "27"]) == 0
    found = {entry["item"] for entry in json.loads(capfd.readouterr().out)}
    assert len(found) == 27
    assert not found & {"i1", "i2", "i3"}
    mine.write_text("nonsense\n")
    assert_refused(words, "no item 'nonsense'", capfd)


def test_prepare_makes_a_data_set_that_simulate_takes(tmp_path: Path, capfd: Capture) -> None:
    data, out = str(tmp_path / "data"), str(tmp_path / "run")
    assert main(["prepare", "synthetic", "--users", "100", "--items", "60", "--out", data]) == 0
    assert main(["simulate", "--data", data, "--out", out, *QUICK, "--nodes", "2"]) == 0
    printed = capfd.readouterr().out
    assert "100" in printed
    assert "run folder:" in printed
    assert_refused(["prepare", "synthetic", "--out", data], "add --overwrite", capfd)
    assert_refused(["prepare", "/nowhere.csv", "--out", out + "2"], "/nowhere.csv", capfd)
    assert not (tmp_path / "run2").exists()


# --- help and ways to call ------------------------------------------------------------------------


def help_of(words: list[str], capfd: Capture) -> str:
    capfd.readouterr()
    with pytest.raises(SystemExit) as caught:
        main([*words, "--help"])
    assert caught.value.code == 0
    return capfd.readouterr().out


def test_help_names_every_command(capfd: Capture) -> None:
    text = help_of([], capfd)
    assert all(command in text for command in COMMANDS)
    assert main([]) == 2


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["prepare", "x.csv"], "--out"),
        (["prepare", "x.csv", "--out", "d", "--min-interactions", "few"], "--min-interactions"),
        (["prepare", "synthetic", "--out", "d", "--users", "1e400"], "--users"),
        (["data"], "COMMAND"),
        (["data", "inspect", "x.csv", "--min-interactions", "3"], "--min-interactions"),
        (["train"], "'train'"),
    ],
)
def test_wrong_arguments_are_one_line(words: list[str], named: str, capfd: Capture) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert named in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [
        ["store", "list", "--state", "s", "--user", "\udcff"],
        ["store", "export", "--state", "s", "--out", "o", "--user", "\udcff"],
        ["store", "forget", "--state", "s", "--user", "\udcff"],
        ["recommend", "--run", "r", "--user", "\udcff"],
        ["ask", "localhost:1", "\udcff"],
        ["ask", "localhost:1", "u", "--items", "\udcff"],
        ["prepare", "\udcff", "--out", "d"],
    ],
)
def test_an_argument_that_is_not_utf_8_is_one_line(words: list[str], capfd: Capture) -> None:
    assert main(words) == 2
    assert capfd.readouterr().err == (
        "error: the argument '\\udcff' is not UTF-8; give ids and paths in UTF-8\n"
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capfd: Capture) -> None:
    assert f"usage: fedrecgel {command}" in help_of([command], capfd)


def test_help_of_simulate_names_every_setting(capfd: Capture) -> None:
    common, *sections = help_of(["simulate"], capfd).split("\nof ")
    own = {section.partition(":")[0]: section for section in sections}
    assert own.keys() == ALGORITHMS.keys()
    for name, section in own.items():
        lines = [line.strip() for line in (common + section).splitlines()]
        for setting, default, _ in setting_help(ALGORITHMS[name].config_class):
            (line,) = [line for line in lines if line.startswith(f"{setting} ")]
            assert line.endswith(f"[{default}]")


def test_ctrl_c_is_no_traceback(
    small_data: Dataset, tmp_path: Path, capfd: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*args: Any, **more: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedrecgel.simulation.run.simulate", interrupt)
    words = ["simulate", "--data", str(small_data.path), "--out", str(tmp_path / "run")]
    assert main(words) == 130
    assert capfd.readouterr().err == "stopped\n"


@pytest.mark.parametrize("words", [["--version"], ["simulate", "--data", "/nowhere", "--out", "x"]])
def test_the_module_runs_as_a_program(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    root = str(Path(fedrecgel.__file__).parents[1])
    found = subprocess.run(
        [sys.executable, "-m", "fedrecgel", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": root, "HOME": str(tmp_path_factory.mktemp("home"))},
        check=False,
    )
    if words == ["--version"]:
        assert (found.returncode, found.stderr) == (0, "")
        assert found.stdout == f"fedrecgel {fedrecgel.__version__}\n"
    else:
        assert found.returncode == 2
        assert found.stderr.startswith("error: ")
        assert found.stderr.count("\n") == 1
        assert list(tmp_path.iterdir()) == []


def test_the_demo_goes_on_with_made_data_and_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setenv("FEDRECGEL_DATA", str(tmp_path))
    monkeypatch.setitem(presets.TUNED["default"], "rounds", 2)
    assert main(["demo", "--out", str(tmp_path / "demo"), "--json"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert len(found["recommendations"]) == 10
    assert found["popularity"]["full"].keys() == found["test"]["full"].keys()
    assert "The demo goes on with made data" in printed.err


def test_resume_and_overwrite_contradict_each_other(
    small_data: Dataset, tmp_path: Path, capsys: Capture
) -> None:
    words = ["simulate", "--data", str(small_data.path), "--out", str(tmp_path / "run")]
    assert main([*words, "--resume", "--overwrite"]) == 2
    assert "give one of them" in capsys.readouterr().err
