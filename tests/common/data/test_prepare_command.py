"""``fedrecgel prepare`` as a user calls it."""

import argparse
import json
from pathlib import Path

import pytest

from fedrecgel.cli import prepare as command
from fedrecgel.common.data import Dataset
from fedrecgel.common.errors import DataError


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["prepare", *words])
    code: int = arguments.run(arguments)
    return code


def file_of(tmp_path: Path) -> Path:
    file = tmp_path / "own.csv"
    rows = [f"u{u},i{i},{i}" for u in range(3) for i in range(6)] + ["u1,i1", "u9,i1,1"]
    file.write_text("\n".join(["user,item,time", *rows]))
    return file


def test_the_report_in_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(str(file_of(tmp_path)), "--out", str(tmp_path / "data")) == 0
    output = capsys.readouterr().out
    data = Dataset.load(tmp_path / "data")
    for part in (
        "read as: separator ',', with header, utf-8",
        "user = user ('u0'), item = item ('i0'), time = time ('0')",
        "own.csv line 20: 2 fields instead of 3: 'u1,i1'",
        "users, single pass",
        "3 validation, 3 test",
        data.hash,
    ):
        assert part in output


def test_the_report_in_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--seed", "3", "--min-interactions", "1", "--json", "--time-column", "none")
    assert call(str(file_of(tmp_path)), "--out", str(tmp_path / "data"), *options) == 0
    manifest = json.loads(capsys.readouterr().out)
    assert manifest["seed"] == 3
    assert manifest["report"]["missing_times"] == 19
    assert manifest["statistics"]["raw"]["users"] == 4
    assert manifest["hash"] == Dataset.load(tmp_path / "data").hash


def test_warnings_go_to_the_error_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "filmtrust").mkdir()
    text = "".join(f"1,{item},3\n" for item in range(7))
    (tmp_path / "filmtrust" / "ratings.txt").write_text(text)
    monkeypatch.setenv("FEDRECGEL_DATA", str(tmp_path))
    assert call("filmtrust", "--out", str(tmp_path / "data")) == 0
    output = capsys.readouterr()
    assert output.err.startswith("warning: this is not the documented filmtrust")
    assert "NOT the documented filmtrust" in output.out


def test_synthetic_with_numbers_like_1e2(tmp_path: Path) -> None:
    assert call("synthetic", "--users", "1e2", "--items", "80", "--out", str(tmp_path / "d")) == 0
    assert Dataset.load(tmp_path / "d").num_users == 100
    with pytest.raises(SystemExit):
        call("synthetic", "--users", "1.5", "--out", str(tmp_path / "e"))


def test_an_error_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no file 'none.csv'"):
        call("none.csv", "--out", str(tmp_path / "data"))
