"""What is passed on of what `flwr` prints, and how long a run is followed."""

import subprocess
import sys
import threading
from pathlib import Path
from typing import ClassVar

import pytest

from fedrecgel.common.errors import ConfigError, DeployError
from fedrecgel.deploy import control
from fedrecgel.deploy.control import Operator, _reason, _told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("round 1/5 loss 0.6 users 123 4.2 s\n", "round 1/5 loss 0.6 users 123 4.2 s"),
        ("\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process\n", ""),
        (
            "\x1b[91mERROR \x1b[0m:     error: 1 of 3 nodes are there",
            "error: 1 of 3 nodes are there",
        ),
        ("Using SuperLink: deployment (127.0.0.1:1)", ""),
        ("Successfully installed fedrecgel to /x", ""),
        ("Exit Code: 201", ""),
        ("│ Connection to the SuperLink is unavailable. Please check your network │", ""),
        ("\n", ""),
    ],
)
def test_only_the_server_app_and_errors_are_heard(line: str, told: str) -> None:
    assert _told(line) == told


def test_a_reason_is_one_line_without_frames() -> None:
    assert _reason("╭─ Error ─╮\n│ not  allowed │\n╰─╯") == "Error not allowed"
    assert _reason('{"success": false, "error-message": "no\\nway"}') == "no way"
    assert _reason("") == "it said nothing"


def test_a_name_that_the_app_does_not_know_is_named_before_anything_is_handed_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[tool.flwr.app.config]\nrounds = ""\nseed = ""\n[tool.flwr.app.config.table]\nx = 1\n'
    (tmp_path / "pyproject.toml").write_text(text)
    handed: list[tuple[str, ...]] = []

    def flwr(self: Operator, *arguments: str) -> dict[str, str]:
        handed.append(arguments)
        return {"run-id": "1"}

    monkeypatch.setattr(Operator, "_json", flwr)
    operator = Operator(tmp_path)
    with pytest.raises(ConfigError, match=r"^unknown setting 'rouns'; did you mean 'rounds'\?$"):
        operator.submit(tmp_path, {"seed": 1, "rouns": 5})
    with pytest.raises(ConfigError, match=r"^unknown setting 'qqq'; all of them are in .*toml$"):
        operator.submit(tmp_path, {"qqq": 5})
    assert handed == []
    assert operator.submit(tmp_path, {"rounds": 5, "table.x": 2}) == "1"
    assert operator.submit(tmp_path / "none", {"rouns": 5}) == "1"  # flwr says what is wrong


class Scripted(Operator):
    """An operator whose streams and statuses are given."""

    streams: ClassVar[list[list[str]]] = []
    statuses: ClassVar[list[str | None]] = []

    def submit(self, app: Path, run_config: object) -> str:
        return "1"

    def stop_run(self, run: str) -> None: ...

    def follow(self, run: str) -> "subprocess.Popen[str]":
        text = "".join(f"{line}\n" for line in self.streams.pop(0))
        command = [sys.executable, "-c", f"print({text!r}, end='')"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def runs(self) -> list[dict[str, object]]:
        status = self.statuses.pop(0)
        if status is None:
            raise DeployError("flwr ls got no answer")
        return [{"run-id": 1, "status": status}]


def test_a_run_is_followed_over_a_restart_of_its_superlink(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    operator = Scripted(tmp_path)
    operator.streams[:] = [["round 1/2", "INFO : x"], ["round 1/2", "round 2/2"]]
    operator.statuses[:] = [None, "running", "finished:completed"]
    heard: list[str] = []
    operator.run(tmp_path, {}, heard.append)
    assert heard == ["round 1/2", "round 2/2"]


def test_a_run_that_nobody_takes_is_given_up_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U021: a stream that stays silent for ever while the run is pending."""

    class Waiting(Scripted):
        stopped: ClassVar[list[str]] = []

        def follow(self, run: str) -> "subprocess.Popen[str]":
            command = [sys.executable, "-c", "import time; time.sleep(600)"]
            return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

        def stop_run(self, run: str) -> None:
            self.stopped.append(run)

    monkeypatch.setattr(control, "START", 0.5)
    operator = Waiting(tmp_path)
    operator.statuses[:] = ["pending"]
    with pytest.raises(DeployError, match=r"has not begun after 0.5 s: no executor takes it; is"):
        operator.run(tmp_path, {}, lambda line: None)
    assert operator.stopped == ["1"]


@pytest.mark.slow
def test_who_is_told_may_take_their_time(tmp_path: Path) -> None:
    operator = Scripted(tmp_path)
    operator.streams[:] = [["round 1/2", "round 2/2"]]
    operator.statuses[:] = ["finished:completed"]
    heard: list[str] = []

    def say(line: str) -> None:
        threading.Event().wait(5.5)
        heard.append(line)

    operator.run(tmp_path, {}, say)
    assert heard == ["round 1/2", "round 2/2"]


def test_complaints_of_the_one_who_listens_are_not_counted_as_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else as many lines of the run would be left out when it is listened to again."""
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    operator = Scripted(tmp_path)
    box = ["╭─ Error ─╮", "│ Connection to the SuperLink is unavailable. │", "╰─────────╯"]
    operator.streams[:] = [["round 1/3", *box], ["round 1/3", "round 2/3", "round 3/3"]]
    operator.statuses[:] = ["running", "finished:completed"]
    heard: list[str] = []
    operator.run(tmp_path, {}, heard.append)
    assert heard == ["round 1/3", "round 2/3", "round 3/3"]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        (["error: no site", "[/v1/push][ApiError:1008] token"], "no site"),
        (["Traceback (most recent call last):", "ValueError: seven"], "seven"),
        (["round 1/3"], "no reason was given: was the server app killed, or the SuperLink away"),
    ],
)
def test_the_reason_is_what_the_server_app_said_last(
    said: list[str], reason: str, tmp_path: Path
) -> None:
    operator = Scripted(tmp_path)
    operator.streams[:] = [said]
    operator.statuses[:] = ["finished:failed"]
    with pytest.raises(DeployError, match=f"the run finished, failed: {reason}"):
        operator.run(tmp_path, {}, lambda line: None)


def test_a_failed_run_ends_with_what_it_said(tmp_path: Path) -> None:
    operator = Scripted(tmp_path)
    operator.streams[:] = [["ERROR : error: no site is there"]]
    operator.statuses[:] = ["finished:failed"]
    with pytest.raises(DeployError, match="the run finished, failed: no site is there"):
        operator.run(tmp_path, {}, lambda line: None)
