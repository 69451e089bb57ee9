"""What an operator asks a SuperLink for, through Flower's command ``flwr``."""

import contextlib
import itertools
import json
import re
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrecgel.common.config import nearest
from fedrecgel.common.errors import ConfigError, DeployError
from fedrecgel.deploy.flower import config_text, environment, flwr_command, write_connection

CONNECTION = "deployment"
"""Name of the connection in ``config.toml``."""

SUCCESS = "finished:completed"
"""Status of a run that did what it should."""

START = 120.0
"""Seconds within which a run must begin."""

ANSWER = 120.0
"""Seconds within which ``flwr`` must come back."""

ATTEMPTS = 5
"""How often a SuperLink is asked how a run stands, five seconds apart."""

Values = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class Operator:
    """Somebody who may register nodes and start runs at a SuperLink.

    Attributes
    ----------
    home
        The operator's FLWR_HOME.
    """

    home: Path

    @classmethod
    def of(cls, home: Path, address: str, ca: Path) -> "Operator":
        """Write down how the SuperLink is reached."""
        write_connection(home, CONNECTION, address, ca)
        return cls(home)

    def register(self, public_key: Path, site: str) -> bool:
        """Let the node with this key in; False if it is registered already.

        Raises
        ------
        DeployError
            When the SuperLink does not answer or refuses.
        """
        code, text = self._flwr(
            "supernode", "register", str(public_key), CONNECTION, "--name", site
        )
        if code == 0:
            return True
        if "already in use" in text:
            return False
        raise DeployError(f"{site} could not be registered: {_reason(text)}")

    def nodes(self) -> list[dict[str, Any]]:
        """The registered nodes; ``status`` is ``online`` where a node is connected."""
        found: list[dict[str, Any]] = self._json("supernode", "list", CONNECTION)["nodes"]
        return found

    def runs(self) -> list[dict[str, Any]]:
        """All runs, with ``run-id`` and ``status``."""
        found: list[dict[str, Any]] = self._json("ls", CONNECTION)["runs"]
        return found

    def submit(self, app: Path, run_config: Values) -> str:
        """Hand a run in; returns its id.

        Raises
        ------
        ConfigError
            When the app has no setting of a name.
        DeployError
            When the SuperLink does not answer or refuses.
        """
        _check_settings(app, run_config)
        arguments = ["run", str(app), CONNECTION]
        if run_config:
            arguments += ["--run-config", config_text(run_config)]
        return str(self._json(*arguments)["run-id"])

    def run(
        self,
        app: Path,
        run_config: Values,
        say: Callable[[str], None],
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Hand a run in, tell what it says until it ends, and stop it if this is interrupted.

        Parameters
        ----------
        say
            Gets the lines of the run's server app, without Flower's own but warnings.
        check
            Called now and then; what it raises ends the run.

        Raises
        ------
        DeployError
            When the SuperLink refuses it, when it does not begin within `START` seconds, or when
            it fails.
        """
        run, said = self.submit(app, run_config), list[str]()
        try:
            status = ""
            while not status.startswith("finished"):
                # The stream also ends when a SuperLink is restarted or busy; the run goes on then.
                self._listen(run, said, say, check)
                status = self._status(run)
        except BaseException:
            with contextlib.suppress(DeployError):
                self.stop_run(run)
            raise
        if status != SUCCESS:
            errors = [found.group(1) for line in said if (found := _ERROR.match(line))]
            raise DeployError(f"the run {status.replace(':', ', ')}: {[_SILENT, *errors][-1]}")

    def _listen(
        self, run: str, said: list[str], say: Callable[[str], None], check: Callable[[], None]
    ) -> None:
        """Pass on what the server app says, after what it ``said``, until the stream ends."""
        process, before = self.follow(run), len(said)
        assert process.stdout is not None

        def read() -> None:
            told = (_told(line) for line in process.stdout or ())
            for line in itertools.islice(filter(None, told), before, None):
                said.append(line)
                say(line)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            begin = time.monotonic() + START
            while process.poll() is None:
                check()
                if begin and time.monotonic() > begin:
                    begin = 0.0
                    self._must_have_begun(run)
                time.sleep(0.3)
        finally:
            process.terminate()
            process.wait()
            reader.join()  # it ends with what the process said; who is told may take their time
            process.stdout.close()

    def _must_have_begun(self, run: str) -> None:
        if self._status(run).startswith("pending"):
            raise DeployError(
                f"the run has not begun after {START:g} s: no executor takes it; is the SuperExec "
                "beside the SuperLink running, with the SuperLink's superexec.secret?"
            )

    def _status(self, run: str) -> str:
        """A run's status, from a SuperLink that may just be restarting or busy."""
        for attempt in itertools.count(1):
            try:
                return next(str(r["status"]) for r in self.runs() if str(r["run-id"]) == run)
            except DeployError:
                if attempt == ATTEMPTS:
                    raise
                time.sleep(5)
        raise AssertionError("never left without an answer")

    def follow(self, run: str) -> "subprocess.Popen[str]":
        """A process that prints what the run's server app says, until the run ends."""
        return subprocess.Popen(
            flwr_command("log", run, CONNECTION, "--stream"),
            env=environment(self.home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def stop_run(self, run: str) -> None:
        """End a run; nodes are told when they next ask."""
        self._flwr("stop", run, CONNECTION)

    def _json(self, *arguments: str) -> dict[str, Any]:
        code, text = self._flwr(*arguments, "--format", "json")
        try:
            # Notices may stand before the JSON.
            found: dict[str, Any] = json.loads(text[text.index("{") :])
        except ValueError:
            found = {}
        if code != 0 or not found.get("success"):
            raise DeployError(f"flwr {arguments[0]} failed: {_reason(text)}")
        return found

    def _flwr(self, *arguments: str, timeout: float = ANSWER) -> tuple[int, str]:
        try:
            done = subprocess.run(
                flwr_command(*arguments),
                env=environment(self.home),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise DeployError(
                f"flwr {arguments[0]} got no answer within {timeout:g} s; is the SuperLink well?"
            ) from None
        return done.returncode, done.stdout + done.stderr


def _check_settings(app: Path, run_config: Values) -> None:
    """Refuse a name that stands nowhere in an app's configuration; Flower would not say which."""
    try:
        project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
        known = list(project["tool"]["flwr"]["app"]["config"])
    except (OSError, ValueError, LookupError, TypeError):
        return  # no folder of an app: flwr says so
    for name in run_config:
        # A table's names are written after its own and a dot.
        if name.partition(".")[0] not in known:
            otherwise = f"all of them are in {app / 'pyproject.toml'}"
            raise ConfigError(f"unknown setting '{name}'; {nearest(name, known, otherwise)}")


_SILENT = (
    "no reason was given: was the server app killed, or the SuperLink away for a minute? go on "
    "with resume=true"
)
_ERROR = re.compile(r"(?:error|[\w.]*(?:Error|Exception)): (.+)")
"""A line of ours, or the last one of a traceback."""

_FLOWERS_OWN = re.compile(
    r"[╭│╰]|(INFO|DEBUG)\b\s*:|Using SuperLink|Successfully installed|Exit Code: \d"
    r"|For more information,|An unhandled exception occurred in the ServerApp"
)


def _told(line: str) -> str:
    """A line of the server app; of Flower's own lines only warnings and errors."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", line).strip()
    return "" if _FLOWERS_OWN.match(plain) else re.sub(r"^(WARNING|ERROR)\s*:\s*", "", plain)


def _reason(text: str) -> str:
    """The telling part of what ``flwr`` printed, in one line."""
    message = re.search(r'"error-message":\s*"(.*?)"[,\n}]', text, re.DOTALL)
    plain = message.group(1) if message else text
    words = re.sub(r"\\n|[│╭╮╰╯─]", " ", plain).split()
    return " ".join(words)[:400] or "it said nothing"
