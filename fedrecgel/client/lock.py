"""One process of this machine at a time."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
