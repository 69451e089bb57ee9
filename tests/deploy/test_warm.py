"""Client apps that start warm: each a process of its own, with torch and without our code."""

import io
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from fedrecgel.deploy import warm
from fedrecgel.deploy.flower import WARM, environment, superexec_command

# A template as `warm` starts it, whose client app tells what it finds and ends with code 3.
SCRIPT = """
import importlib.util, json, os, sys, time

import flwr.supernode.cli as cli

def app():
    found = {name: name in sys.modules for name in ("torch", "fedrecgel")}
    comm = open("/proc/self/comm").read().strip()
    told = {"pid": os.getpid(), "parent": os.getppid(), "argv": sys.argv, "comm": comm, **found}
    with open(sys.argv[1], "w") as file:
        json.dump(told, file)
    os.replace(sys.argv[1], sys.argv[1] + ".done")
    sys.exit(3)

cli.flwr_clientapp = app
spec = importlib.util.spec_from_file_location("warm", WARM)
warm = importlib.util.module_from_spec(spec)
spec.loader.exec_module(warm)
template = warm.start_template()
starter = warm.Starter(template)
for name in ("a", "b"):
    starter.Popen(["flwr-clientapp", name])
while not all(os.path.exists(f"{name}.done") for name in ("a", "b")):
    time.sleep(0.05)
os._exit(0)  # killed, as it were: the template must see it
"""


@pytest.mark.flower
def test_each_message_has_a_process_of_its_own_with_torch_and_none_of_our_code(
    tmp_path: Path,
) -> None:
    script = SCRIPT.replace("WARM", repr(str(WARM)))
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        env=environment(tmp_path),
        timeout=120,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    a, b = (json.loads((tmp_path / f"{name}.done").read_text()) for name in "ab")
    assert a["pid"] != b["pid"]
    assert a["parent"] == b["parent"]
    assert a["argv"] == ["flwr-clientapp", "a"]
    assert a["torch"]
    assert not a["fedrecgel"]
    assert a["comm"] == warm.COMMAND
    # That run() came back, which waits for the end of all output, says that the template ended too.


@pytest.mark.flower
def test_flower_starts_its_processes_where_we_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.supercore.constant import TASK_TYPE_TO_COMMAND
    from flwr.supercore.superexec.executor import subprocess_executor
    from flwr.supercore.superexec.executor.types import ExecutionSpec

    started: list[tuple[list[str], dict[str, Any]]] = []
    stand_in = SimpleNamespace(
        DEVNULL=subprocess.DEVNULL, Popen=lambda args, **options: started.append((args, options))
    )
    monkeypatch.setattr(subprocess_executor, "subprocess", stand_in)
    task = next(task for task, name in TASK_TYPE_TO_COMMAND.items() if name == warm.COMMAND)
    fields = dict.fromkeys(ExecutionSpec.__dataclass_fields__)
    spec = ExecutionSpec(
        **{**fields, "task_type": task, "runtime_api_address": "x:1", "task_id": 1, "token": "t"}  # type: ignore[arg-type]
    )
    subprocess_executor.SubprocessExecutor().launch(spec)
    assert started[0][0][0] == warm.COMMAND
    assert started[0][1] == {}


def test_what_cannot_start_warm_starts_in_flowers_own_way(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append(command[0]))
    template = io.StringIO()
    starter = warm.Starter(template)
    starter.Popen(["flwr-serverapp", "--token", "t"])
    starter.Popen([warm.COMMAND, "--token", "t"], stdout=warm.Starter.DEVNULL)
    assert started == ["flwr-serverapp", warm.COMMAND]
    starter.Popen([warm.COMMAND, "--token", "t"])
    assert len(started) == 2
    assert json.loads(template.getvalue()) == [warm.COMMAND, "--token", "t"]


def test_a_template_that_is_gone_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **options: started.append(command[0]))
    template = io.StringIO()
    monkeypatch.setattr(template, "write", Mock(side_effect=BrokenPipeError))
    warm.Starter(template).Popen([warm.COMMAND])
    assert started == [warm.COMMAND]


def test_where_a_fork_is_not_safe_nothing_is_warm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert superexec_command("x:1", Path("/keys"), warm=True)[0] == "flower-superexec"


@pytest.mark.flower
def test_a_warm_superexec_takes_the_same_options(tmp_path: Path) -> None:
    cold, hot = (superexec_command("x:1", Path("/keys"), warm=warm) for warm in (False, True))
    assert hot[-len(cold) + 1 :] == cold[1:]
    done = subprocess.run(
        [*hot[: -len(cold) + 1], "--help"],
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert "--runtime-api-address" in done.stdout
