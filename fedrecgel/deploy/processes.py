"""Processes that are started together, watched, and stopped in an order."""

import contextlib
import fcntl
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from fedrecgel.common.errors import DeployError

PATIENCE = 15.0
"""Seconds that a process has to end when it is asked to, before it is made to."""

# Flower colours its log even in files.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"^(INFO|WARNING|ERROR)\s*:\s*")

_HINTS = (
    (
        "[code: 2004]",
        "The node's key is not registered at this SuperLink (flwr supernode register), or a node "
        "with it was killed less than a minute ago: then start it again in a minute.",
    ),
)
"""What Flower's words mean for somebody who deploys."""


@dataclass
class Process:
    """A started process and the file that its output goes to, from byte ``begin`` on.

    Attributes
    ----------
    ending
        Whether it was asked to end, so that its end is no failure.
    """

    name: str
    log: Path
    popen: "subprocess.Popen[bytes]"
    rank: int
    begin: int = 0
    ending: bool = False

    def last_line(self) -> str:
        """What it said last; if Flower ended it, why."""
        with contextlib.suppress(OSError):
            said = self.log.read_bytes()[self.begin :].decode(errors="replace")
            lines = [line.strip() for line in _COLOUR.sub("", said).splitlines() if line.strip()]
            ended = [n for n, line in enumerate(lines) if "Exit Code:" in line]
            if ended:
                why = [x for x in lines[ended[-1] : ended[-1] + 3] if "more information" not in x]
                found = _LEVEL.sub("", " ".join(why))
                return next((f"{found} {hint}" for code, hint in _HINTS if code in found), found)
            if lines:
                return _LEVEL.sub("", lines[-1])
        return "nothing was said"

    def ended(self) -> str | None:
        """One line, if it is not running any more."""
        code = self.popen.poll()
        if code is None:
            return None
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
        return f"{self.name} {how}: {self.last_line()}; its log: {self.log}"


class Processes:
    """Starts processes; on leaving, stops all of them, those of the highest rank first.

    Each gets a session of its own, so that Ctrl-C in the terminal reaches this process alone and
    the order of stopping is ours: SuperNodes must say good-bye while their SuperLink still runs.

    All of them hold a lock on the folder of their logs. Should this process be killed, they run on,
    and nobody starts others in their place before they are gone.
    """

    def __init__(self, logs: Path) -> None:
        logs.mkdir(parents=True, exist_ok=True)
        self.logs = logs
        self.started: list[Process] = []
        self._lock = -1

    def __enter__(self) -> "Processes":
        """Take the folder.

        Raises
        ------
        DeployError
            When processes of an earlier start still run there.
        """
        self._lock = _take(self.logs / "running")
        os.write(self._lock, f"{os.getpid()}\n".encode())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        os.close(self._lock)

    def start(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        folder: Path,
        rank: int = 0,
    ) -> Process:
        """Start one in ``folder``; its output is appended to ``NAME.log``.

        What it makes, Flower's database for one, is for its owner alone.

        Raises
        ------
        DeployError
            When there is no such program.
        """
        path = self.logs / f"{name}.log"
        with path.open("ab") as log:
            begin = log.tell()
            try:
                popen = subprocess.Popen(
                    command,
                    env=dict(environment),
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    umask=0o077,
                    pass_fds=(self._lock,),
                )
            except OSError as error:
                raise DeployError(
                    f"{command[0]} cannot be started ({error.strerror}); install Flower into the "
                    "Python that runs this"
                ) from None
        process = Process(name, path, popen, rank, begin)
        os.write(self._lock, f"{popen.pid}\n".encode())
        self.started.append(process)
        return process

    def check(self) -> None:
        """Raise if one of them has ended.

        Raises
        ------
        DeployError
            With what the first one said last, and where its log is.
        """
        for process in list(self.started):
            line = process.ended()
            if line is not None and not process.ending:
                raise DeployError(line)

    def wait(self, what: str, ready: Callable[[], bool], seconds: float, pause: float) -> None:
        """Wait until something is so, as long as all processes run.

        Raises
        ------
        DeployError
            When a process ends, or after ``seconds``.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                last = self.started[-1]
                raise DeployError(
                    f"{what} is not ready after {seconds:g} s; {last.name} said last: "
                    f"{last.last_line()}; logs: {self.logs}"
                )
            time.sleep(pause)

    def stop(self, *names: str) -> None:
        """Ask all, or these, to end, rank by rank; make them end after `PATIENCE`.

        Ctrl-C while it waits makes them end at once.
        """
        chosen = [p for p in self.started if not names or p.name in names]
        seconds = PATIENCE
        for rank in sorted({process.rank for process in chosen}, reverse=True):
            together = [process for process in chosen if process.rank == rank]
            for process in together:
                process.ending = True
                if process.popen.poll() is None:
                    process.popen.terminate()
            deadline = time.monotonic() + seconds
            for process in together:
                try:
                    _end(process.popen, deadline - time.monotonic())
                except KeyboardInterrupt:
                    seconds = 0.0
                    _end(process.popen, 0.0)
                self.started.remove(process)


def _end(popen: "subprocess.Popen[bytes]", seconds: float) -> None:
    try:
        popen.wait(max(0.0, seconds))
    except subprocess.TimeoutExpired:
        popen.kill()
        popen.wait()
    # What a SuperExec started is in its session: an app's process must not outlive it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(popen.pid, signal.SIGKILL)


def _take(path: Path) -> int:
    """A file that is locked as long as somebody has it open.

    It lists process ids, that of who started the others first.
    """
    file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        known = path.read_text(encoding="utf-8").split()
        alive = [pid for pid in known if Path(f"/proc/{pid}").exists()]
        os.close(file)
        if known[:1] == alive[:1]:
            raise DeployError(
                f"a deployment is running there (process {known[0]}, logs in {path.parent}): wait "
                f"for it, stop it with Ctrl-C where it runs or with: kill {known[0]}; or give "
                "another --out"
            ) from None
        raise DeployError(
            f"the deployment in {path.parent.parent} was killed without its processes: end them, "
            f"the last one first: kill {' '.join(reversed(alive))}"
        ) from None
    os.ftruncate(file, 0)
    return file


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports of this machine that nobody listens on; all different."""
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            free = stack.enter_context(socket.socket())
            free.bind((host, 0))
            found.append(int(free.getsockname()[1]))
    return found
