"""A SuperLink of the tests' own for simulations, and the `flwr` command against it."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES_ALONE = shutil.ignore_patterns("__pycache__")  # others write there at the same time
FLWR = [sys.executable, "-c", "from flwr.cli.app import app; app()"]


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink; ``app`` is a copy of the project's app."""

    app: Path
    environment: dict[str, str]

    def flwr(self, *arguments: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*FLWR, *arguments],
            cwd=self.app,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def run(self, nodes: int, **run_config: Any) -> tuple[str, str]:
        """Run the app; what was streamed, and the state the run ended in."""
        federation = f"num-supernodes={nodes} client-resources-num-cpus=1 init-args-num-cpus=2"
        values = " ".join(f"{k.replace('_', '-')}={_toml(v)}" for k, v in run_config.items())
        done = self.flwr("run", ".", "--stream", "--federation-config", federation, "-c", values)
        listed = json.loads(self.flwr("ls", "--format", "json").stdout)
        assert listed["runs"], done.stdout + done.stderr
        newest = max(listed["runs"], key=lambda run: run["pending-at"])
        return done.stdout + done.stderr, newest["status"]


@contextmanager
def superlink(folder: Path) -> Iterator[SuperLink]:
    """Start a SuperLink on a free port, end it by its process id."""
    app, home = folder / "app", folder / "home"
    app.mkdir()
    home.mkdir()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for name in [*project["tool"]["flwr"]["app"]["fab-include"], "pyproject.toml"]:
        if "*" not in name:
            shutil.copy(ROOT / name, app)
    shutil.copytree(ROOT / "fedrecgel", app / "fedrecgel", ignore=SOURCES_ALONE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (home / "config.toml").write_text(
        f'[superlink]\ndefault = "tests"\n\n[superlink.tests]\naddress = "127.0.0.1:{port}"\n'
        "insecure = true\n"
    )
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
    }
    # Ray's sockets lie in it: a short path, and nothing left in /tmp/ray.
    environment["RAY_TMPDIR"] = ray = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    options = ["--insecure", "--simulation", "--disable-runtime-dependency-installation"]
    log = (folder / "superlink.log").open("w")
    process = subprocess.Popen(
        ["flower-superlink", *options, "--host", "127.0.0.1", "--port", str(port)],
        cwd=folder,
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        link = SuperLink(app, environment)
        deadline = time.monotonic() + 300
        while link.flwr("ls", "--format", "json").returncode != 0:
            assert process.poll() is None, (folder / "superlink.log").read_text()
            assert time.monotonic() < deadline, "the SuperLink does not answer"
        yield link
    finally:
        process.terminate()
        process.wait(30)
        log.close()
        shutil.rmtree(ray, ignore_errors=True)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str | Path) else str(value)


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SuperLink]:
    """Return a SuperLink for the tests of a module."""
    with superlink(tmp_path_factory.mktemp("superlink")) as started:
        yield started
