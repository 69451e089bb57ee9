"""Processes that are watched and stopped in order; nothing of them stays."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedrecgel.common.errors import DeployError
from fedrecgel.deploy import processes as module
from fedrecgel.deploy.processes import Processes, free_ports


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


SLEEP = python("import time; print('up', flush=True); time.sleep(60)")


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(path: Path, text: str) -> None:
    deadline = time.monotonic() + 20
    while text not in path.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_those_of_the_highest_rank_are_stopped_first(tmp_path: Path) -> None:
    code = (
        "import signal, sys, time\n"
        "def end(number, frame):\n"
        f"    open({str(tmp_path / 'order')!r}, 'a').write(sys.argv[1])\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('up', flush=True)\n"
        "time.sleep(60)\n"
    )
    with Processes(tmp_path / "logs") as started:
        for name, rank in (("l", 0), ("n", 1), ("e", 2)):
            started.start(name, [*python(code), name], os.environ, tmp_path, rank)
        pids = [process.popen.pid for process in started.started]
        for name in "lne":
            wait_for(tmp_path / "logs" / f"{name}.log", "up")
    assert (tmp_path / "order").read_text() == "enl"
    assert not any(is_alive(pid) for pid in pids)


def test_what_a_process_makes_is_its_owners_alone(tmp_path: Path) -> None:
    with Processes(tmp_path / "logs") as started:
        code = "open('flower.db', 'w'); print('made', flush=True)"
        started.start("link", python(code), os.environ, tmp_path)
        wait_for(tmp_path / "logs" / "link.log", "made")
    assert (tmp_path / "flower.db").stat().st_mode & 0o777 == 0o600


def test_one_that_ends_is_named_with_what_it_said(tmp_path: Path) -> None:
    with Processes(tmp_path) as started:
        started.start("link", SLEEP, os.environ, tmp_path)
        code = r"print('\x1b[91mERROR \x1b[0m:  the key is not registered'); raise SystemExit(7)"
        ended = started.start("node", python(code), os.environ, tmp_path)
        ended.popen.wait(20)
        with pytest.raises(
            DeployError, match=r"node ended with 7: the key is not registered; its log: .*node\.log"
        ):
            started.check()


def test_what_flower_means_by_its_codes_is_said(tmp_path: Path) -> None:
    said = (
        "old", "ERROR :     Exit Code: 305", "Failed to initialize the connection.",
        "[code: 2004] Failed to activate SuperNode.", "For more information, visit: x", "INFO: bye",
    )  # fmt: skip
    (tmp_path / "node.log").write_text("Exit Code: 1 of an earlier start\n")
    with Processes(tmp_path) as started:
        code = f"print({chr(10).join(said)!r}); raise SystemExit(1)"
        node = started.start("node", python(code), os.environ, tmp_path)
        node.popen.wait(20)
        assert str(node.ended()).startswith(
            "node ended with 1: Exit Code: 305 Failed to initialize the connection. [code: 2004] "
            "Failed to activate SuperNode. The node's key is not registered"
        )


def test_waiting_ends_when_a_process_does_and_in_time(tmp_path: Path) -> None:
    with Processes(tmp_path) as started:
        started.start("node", SLEEP, os.environ, tmp_path)
        wait_for(tmp_path / "node.log", "up")
        with pytest.raises(DeployError, match=r"it is not ready after 0\.1 s; node said last: up"):
            started.wait("it", lambda: False, 0.1, 0.02)
        started.started[0].popen.kill()
        started.started[0].popen.wait(20)
        with pytest.raises(DeployError, match="node was killed by SIGKILL"):
            started.wait("it", lambda: False, 20, 0.02)


def test_one_that_does_not_listen_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.3)
    code = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid, 'up', flush=True)\n"
        "time.sleep(60)\n"
    )
    with Processes(tmp_path) as started:
        process = started.start("deaf", python(code), os.environ, tmp_path)
        wait_for(process.log, "up")
    child = int(process.log.read_text().split()[0])
    assert process.popen.returncode == -9
    deadline = time.monotonic() + 5  # until init has taken it
    while is_alive(child) and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_second_start_is_told_of_the_one_that_runs(tmp_path: Path) -> None:
    """Its processes are well: nobody is told to kill them."""
    with Processes(tmp_path) as started:
        process = started.start("link", SLEEP, os.environ, tmp_path)
        with pytest.raises(DeployError) as found, Processes(tmp_path):
            pass
        own = os.getpid()
        assert f"a deployment is running there (process {own}, logs in {tmp_path})" in str(
            found.value
        )
        assert f"kill {own};" in str(found.value)
        assert str(process.popen.pid) not in str(found.value)


def test_a_second_start_waits_for_the_processes_of_a_killed_one(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with Processes(tmp_path) as started:
        process = started.start("link", SLEEP, os.environ, tmp_path)
        # The first number is whose they are: as if that process had been killed.
        (tmp_path / "running").write_text(f"{dead.pid}\n{process.popen.pid}\n")
        os.close(started._lock)
        line = rf"was killed without its processes: end them, .* kill {process.popen.pid}$"
        with pytest.raises(DeployError, match=line), Processes(tmp_path):
            pass
        started._lock = os.dup(0)
    with Processes(tmp_path):
        pass


def test_one_that_was_asked_to_end_is_no_failure(tmp_path: Path) -> None:
    with Processes(tmp_path) as started:
        for name in ("a", "b"):
            started.start(name, SLEEP, os.environ, tmp_path)
        one = started.started[0]
        started.stop("a")
        assert [process.name for process in started.started] == ["b"]
        started.started.append(one)  # as another thread sees it in the middle of it
        started.check()


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with Processes(tmp_path) as started, pytest.raises(DeployError, match="cannot be started"):
        started.start("x", ["no-such-program"], os.environ, tmp_path)


def test_free_ports_are_different() -> None:
    assert len(set(free_ports(20))) == 20
