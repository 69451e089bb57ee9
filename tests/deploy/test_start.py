"""What a container looks at before it becomes one of Flower's processes (U032)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.start import check_keys, check_readable, check_writable, flower_home


def test_a_folder_that_is_missing_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    check_writable([tmp_path / "state" / "private"])
    assert (tmp_path / "state" / "private").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "state" / "private").iterdir()) == []


def test_a_folder_that_takes_no_files_is_named_with_the_user(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for folder in (tmp_path / "taken", tmp_path / "taken" / "below"):
        with pytest.raises(DeployError, match=f"user {os.getuid()}:.* cannot write in {folder} "):
            check_writable([tmp_path, folder])


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """U032: a container runs as any uid; the image's password file does not know it."""
    for name in ("HOME", "FLWR_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    with pytest.raises(DeployError, match=f"user {os.getuid()}:.* has no home; set FLWR_HOME"):
        flower_home()


def test_a_home_that_cannot_be_written_is_named_before_flower_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U032: Flower would be online, and fail when the first run arrives."""
    (tmp_path / "home").write_text("")
    monkeypatch.delenv("FLWR_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(DeployError, match=f"cannot write in {tmp_path}/home/.flwr "):
        flower_home()
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "volume"))
    assert flower_home() == tmp_path / "volume"


def test_a_key_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("x")
    check_readable([tmp_path / "ca.crt"])
    with pytest.raises(DeployError, match=rf"cannot read {tmp_path}/node \(No such file"):
        check_keys(tmp_path, "ca.crt", "node")


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"cannot read .*Is a directory"):
        check_readable([tmp_path])


def test_without_keys_nothing_starts_and_one_line_says_why(tmp_path: Path) -> None:
    command = ["deploy", "start", "superexec", "--address", "site-1:9094", "--keys", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "fedrecgel", *command],
        env={**os.environ, "FLWR_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: user ")
    assert f"cannot read {tmp_path}/ca.crt" in done.stderr
    assert len(done.stderr.splitlines()) == 1
