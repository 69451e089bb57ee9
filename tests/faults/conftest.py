"""A small deployment to break: two sites as plain processes, and an app that fails on request."""

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fedrecgel import Result, prepare
from fedrecgel.deploy.bundle import write_app
from fedrecgel.deploy.local import LocalDeployment
from fedrecgel.deploy.one_machine import OneMachine
from fedrecgel.deploy.processes import Process
from fedrecgel.deploy.sites import write_sites

# A site whose state folder holds fault.json, {"ROUND": "what"}, does that in this round, once;
# "hold" waits for a file "go" beside it and takes it away; "full" lets no file grow.
MISCHIEF = """

def _mischief(train):
    import json, os, resource, signal, time
    from dataclasses import replace

    import torch

    def poisoned(update, what):
        name = next(iter(update.rows))
        index, value = update.rows[name]
        if what == "nan":
            value = torch.full_like(value, float("nan"))
        elif what == "shape":
            value = torch.cat([value, value], dim=-1)
        else:
            value = value + 1e12
        return replace(update, rows={**update.rows, name: (index, value)})

    def trained(site, request):
        path = site.state_folder / "fault.json"
        faults = json.loads(path.read_text()) if path.is_file() else {}
        what = faults.pop(str(request.round), "")
        if what:
            path.write_text(json.dumps(faults))
        if what == "hold":
            for _ in range(3000):
                if (site.state_folder / "go").exists():
                    (site.state_folder / "go").unlink()
                    break
                time.sleep(0.1)
        if what == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        if what == "die-before":
            os.kill(os.getpid(), signal.SIGKILL)
        reply = train(site, request)
        if what == "die-after":
            os.kill(os.getpid(), signal.SIGKILL)
        if what in ("nan", "shape", "huge"):
            return replace(reply, updates=[poisoned(update, what) for update in reply.updates])
        return reply

    return trained


train = _mischief(train)
"""


@dataclass
class Rig:
    """The deployment, what runs said, and hands to break it."""

    machine: OneMachine
    running: LocalDeployment
    app: Path
    runs: int = 0
    troubles: list[BaseException] = field(default_factory=list)

    def run(
        self, on_line: Callable[[str], None] = lambda line: None, **config: Any
    ) -> tuple[list[str], Result]:
        """A run of its own folder; ``on_line`` is called with each line while it goes on."""
        if not config.get("resume"):
            self.runs += 1
        lines: list[str] = []

        def say(line: str) -> None:
            lines.append(line)
            print(f"{time.strftime('%H:%M:%S')} {line}", flush=True)
            try:
                on_line(line)
            except BaseException as error:
                self.troubles.append(error)
                raise

        named = {"fraction": 1.0, "dtype": "float64", "evaluate-every": 100, "rounds": 3}
        names = {name.replace("_", "-"): value for name, value in config.items()}
        options = {n: names.pop(n) for n in ("min-nodes", "catalogue", "wait") if n in names}
        resume = bool(names.pop("resume", False))
        base = self.machine.run_config(named | names) | {"resume": resume}
        out = self.machine.folder / f"run-{self.runs}"
        self.lines = lines
        self.running.run(self.app, base | options | {"out": str(out)}, say)
        assert self.troubles == []
        return lines, Result.open(out)

    def site(self, number: int) -> str:
        return self.machine.sites[number - 1].name

    def fault(self, site: int, **rounds: str) -> None:
        """``fault(2, r3="nan")``: site 2 sends nan in round 3."""
        state = self.machine.state(self.site(site))
        state.mkdir(parents=True, exist_ok=True)
        (state / "go").unlink(missing_ok=True)
        (state / "fault.json").write_text(json.dumps({k[1:]: v for k, v in rounds.items()}))

    def go(self, site: int, online: int) -> None:
        """Let a site that holds a round go on, once so many nodes are there."""
        self.running.wait_online(online)
        (self.machine.state(self.site(site)) / "go").touch()

    def states(self, site: int) -> dict[tuple[object, int], bytes]:
        """Private states in the store of a site by (user, round), of its latest experiment."""
        path = self.machine.state(self.site(site)) / "private.sqlite"
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
            rows = connection.execute(
                "SELECT user, round, state FROM states WHERE experiment = "
                "(SELECT max(number) FROM experiments)"
            ).fetchall()
        connection.close()
        return {(user, round): state for user, round, state in rows}

    def process(self, name: str) -> Process:
        return next(p for p in self.running.processes.started if p.name == name)

    def kill(self, name: str) -> None:
        """SIGKILL one of Flower's processes; it is not watched any more."""
        process = self.process(name)
        process.ending = True
        self.running.processes.started.remove(process)
        process.popen.kill()
        process.popen.wait(10)

    def start_site(self, number: int) -> None:
        """Start the SuperNode and SuperExec of a site, as often as a service manager would."""
        site = self.machine.sites[number - 1]
        for _ in range(60):
            node = self.running.start_supernode(self.machine.local_site(site))
            node.ending = True  # it may be refused, which is no failure of the deployment
            # Flower names the node before it refuses it: only one that stays was let in.
            deadline = time.monotonic() + 25
            while time.monotonic() < deadline and node.popen.poll() is None:
                time.sleep(0.2)
            if node.popen.poll() is None:
                node.ending = False
                return
            print(node.ended(), flush=True)
            self.running.processes.started.remove(node)
            time.sleep(2)
        raise AssertionError(f"{site.name} was not let in")

    def pids(self, name: str, command: str = "") -> list[int]:
        """Processes that a process of ours started, itself first."""
        found = [self.process(name).popen.pid]
        for pid in found:
            for task in Path(f"/proc/{pid}/task").iterdir():
                found += [int(child) for child in (task / "children").read_text().split()]
        return [pid for pid in found if command in Path(f"/proc/{pid}/cmdline").read_text()]

    def signal(self, name: str, number: signal.Signals) -> None:
        for pid in self.pids(name):
            os.kill(pid, number)


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    folder = tmp_path_factory.mktemp("rig")
    data = prepare("synthetic", folder / "data", users=60)
    # Site 2 can be missed: updates of half the users are enough for a round.
    files = write_sites(data, folder / "sites", ["site-1", "site-2"], sizes=[40, 20])
    machine = OneMachine(folder, data, files)
    app = write_app(folder / "app-that-fails")
    client = app / "fedrecgel" / "client" / "app.py"
    client.write_text(client.read_text() + MISCHIEF)
    with machine.running(print) as running:
        yield Rig(machine, running, app)
