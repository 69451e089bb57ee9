"""How many Ray actors a machine can hold, by its cores and its memory."""

import os
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
ACTOR_MEMORY = GIB // 2
"""Memory of one actor before it trains: Python with torch, Flower and Ray took 0.4 GB."""
DRIVER_MEMORY = GIB
"""Memory left to the server and to Ray's own processes."""
COPIES = 6
"""Copies of the shared tensors in an actor: message, tensors, gradients, reply."""
MOST_ACTORS = 32
"""Flower hands out at most 32 messages at once (and four more than there are cores)."""
STORE = (GIB // 8, 2 * GIB)
"""Least and most size of Ray's object store, where messages lie while they travel."""


@dataclass(frozen=True)
class Resources:
    """What Ray gets.

    Attributes
    ----------
    actors
        Processes, of one CPU and one torch thread each.
    gpus_each
        Share of a GPU for each actor.
    store
        Bytes of the object store.
    line
        The choice in one line.
    """

    actors: int
    gpus_each: float
    gpus: int
    store: int
    line: str


def plan(
    nodes: int, message: int, *, cores: int, memory: int, shared_memory: int, gpus: int = 0
) -> Resources:
    """Choose: one actor a core, as far as nodes and memory go.

    Parameters
    ----------
    message
        Bytes of the shared tensors.
    memory, shared_memory
        Bytes free, and free in ``/dev/shm``.
    gpus
        GPUs to share among the actors; 0 for a run on the CPU.
    """
    each = ACTOR_MEMORY + COPIES * message
    wanted = STORE[0] + 4 * message * min(nodes, MOST_ACTORS)
    # Ray warns and goes to disk where /dev/shm is smaller than the store; a tenth stays free.
    store = max(STORE[0], min(wanted, STORE[1], memory // 4, shared_memory * 9 // 10))
    fit = max(0, memory - DRIVER_MEMORY - store) // each
    limits = {"cores": cores, "nodes": nodes, "memory": max(1, fit), "Flower": MOST_ACTORS}
    actors = min(limits.values())
    reason = min(limits, key=lambda name: limits[name])
    # Rounded down, so that all actors fit.
    gpus_each = int(gpus / actors * 1000) / 1000
    line = (
        f"Ray: {_count(actors, 'actor')} of 1 CPU, 1 thread each (limited by {reason}; "
        f"{_count(cores, 'core')}, {memory / GIB:.1f} GB free), {_count(nodes, 'node')}, "
        f"object store {store / GIB:.2f} GB"
    )
    if gpus:
        line += f", {gpus_each:g} GPU each"
    if shared_memory < store:
        line += f"; /dev/shm has {shared_memory / GIB:.2f} GB free: messages go over the disk"
    return Resources(actors, gpus_each, gpus, store, line)


def usable_cores() -> int:
    """Cores that this process may use: affinity, and a container's share."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        return max(1, min(cores or 1, -(-int(quota) // int(period))))
    return cores or 1


def free_memory() -> int:
    """Bytes of memory that are free: the machine's, and what a container's limit leaves."""
    free = 4 * GIB
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = (_read(f"/sys/fs/cgroup/memory.{name}").strip() for name in ("max", "current"))
    if limit.isdigit() and used.isdigit():
        free = min(free, max(0, int(limit) - int(used)))
    return free


def free_shared_memory() -> int:
    """Bytes free where Ray keeps its object store; elsewhere than on Linux there is no limit."""
    try:
        found = os.statvfs("/dev/shm")
    except (AttributeError, OSError):
        return STORE[1]
    return found.f_bavail * found.f_frsize


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""
