"""What a round of a deployment costs on this machine, and where its seconds go.

``python -m benchmarks.deployment`` starts a SuperLink and three sites as plain processes, once with
a single user at each site and once with 2,000, and prints a table: all times are of a training
round, mean over rounds, and of the site that takes longest.
"""

import argparse
import os
import tempfile
import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.machine import describe
from fedrecgel import prepare
from fedrecgel.deploy.flower import flower_version
from fedrecgel.deploy.one_machine import OneMachine
from fedrecgel.deploy.sites import write_sites

TICK = os.sysconf("SC_CLK_TCK")
SITES = ["site-1", "site-2", "site-3"]


@dataclass
class Life:
    """A client app's process: when it was seen first and last, and the CPU seconds it took."""

    first: float
    last: float
    cpu: float = 0.0


class Watcher(threading.Thread):
    """Looks at the processes of client apps in these sessions twenty times a second."""

    def __init__(self, sessions: set[int]) -> None:
        super().__init__(daemon=True)
        self.sessions = sessions
        self.lives: dict[int, Life] = {}
        self.stopped = threading.Event()

    def run(self) -> None:
        while not self.stopped.wait(0.05):
            now = time.monotonic()
            for entry in Path("/proc").iterdir():
                if not entry.name.isdigit():
                    continue
                try:
                    # The name that a process has, not the command that it was forked from.
                    if (entry / "comm").read_bytes().strip() != b"flwr-clientapp":
                        continue
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) not in self.sessions:
                    continue
                life = self.lives.setdefault(int(entry.name), Life(now, now))
                life.last, life.cpu = now, (int(fields[11]) + int(fields[12])) / TICK


def measure(users: int, rounds: int, folder: Path) -> dict[str, float]:
    """Seconds of a round, and its parts."""
    data = prepare("synthetic", folder / "data", users=users * len(SITES))
    files = write_sites(data, folder / "sites", SITES, sizes=[users] * len(SITES))
    machine = OneMachine(folder, data, files)
    ends: list[float] = []
    seconds: list[float] = []

    def say(line: str) -> None:
        print(line, flush=True)
        if line.startswith("round "):
            ends.append(time.monotonic())
            seconds.append(float(line.split()[-2]))

    settings = {"rounds": rounds, "evaluate-every": 1000, "fraction": 1.0}
    with machine.running(print) as running:
        watcher = Watcher({process.popen.pid for process in running.processes.started})
        watcher.start()
        machine.train(running, machine.run_config(settings), say)
        watcher.stopped.set()
    parts = []
    for begin, end in pairwise(ends[:-1]):  # the last round is evaluated as well
        lives = [life for life in watcher.lives.values() if begin - 1 < life.first < end]
        slowest = max(lives, key=lambda life: life.last)
        parts.append(
            (
                slowest.first - begin,
                slowest.last - slowest.first,
                end - slowest.last,
                float(np.mean([life.cpu for life in lives])),
            )
        )
    waited, process, back, cpu = np.mean(parts, axis=0)
    return {
        "round": float(np.mean(seconds[1:-1])),
        "until the process starts": float(waited),
        "the process": float(process),
        "back to the server": float(back),
        "CPU of a process": float(cpu),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--users", type=int, nargs="+", default=[1, 2000])
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = {}
    for users in arguments.users:
        with tempfile.TemporaryDirectory() as folder:
            found[users] = measure(users, arguments.rounds, Path(folder))
    print(f"\nFlower {flower_version()}, {len(SITES)} sites, {describe()}")
    names = list(next(iter(found.values())))
    print("| users per site | " + " | ".join(names) + " |")
    for users, parts in found.items():
        print(f"| {users:,} | " + " | ".join(f"{parts[name]:.1f} s" for name in names) + " |")


if __name__ == "__main__":
    main()
