"""One process of this machine at a time."""

import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedrecgel.common.errors import RunError

if sys.platform != "win32":
    import fcntl


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of the block while it runs; the system unlocks one that is killed.

    Where the system has no such locks (Windows), nodes of one machine must not share a folder.
    """
    if sys.platform == "win32":
        yield
        return
    file = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


_POLL = 0.05
"""Seconds between two tries."""


class Ownership:
    """Held by this process as long as somebody in it refers to the object; see `own`."""

    def __init__(self, descriptor: int) -> None:
        weakref.finalize(self, os.close, descriptor)


# The system's lock is for a process, so what it holds has to be known to all of it.
_owned: "weakref.WeakValueDictionary[Path, Ownership]" = weakref.WeakValueDictionary()
_guard = threading.Lock()


def own(path: Path, seconds: float) -> Ownership:
    """Own the file at ``path``, for this process, until nobody refers to the result.

    The lock is on ``path.lock`` beside it, which holds the owner's process number. The system
    unlocks when a process ends, in whatever way: no lock is ever stale.

    Raises
    ------
    RunError
        When another process owns it and still does after ``seconds``.
    OSError
        When the lock file cannot be made.
    """
    lock = path.absolute().with_name(f"{path.name}.lock")
    with _guard:
        found = _owned.get(lock)
        if found is not None:
            return found
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            _wait(descriptor, path, seconds)
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode())
        except BaseException:
            os.close(descriptor)
            raise
        _owned[lock] = result = Ownership(descriptor)
        return result


def _wait(descriptor: int, path: Path, seconds: float) -> None:
    if sys.platform == "win32":
        return
    end = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() < end:
                time.sleep(_POLL)
                continue
        owner = os.read(descriptor, 200).decode(errors="replace").strip() or "unknown"
        raise RunError(
            f"{path} is in use by process {owner}; only one may train on it: wait for it, or stop "
            "the node that was started twice"
        )
