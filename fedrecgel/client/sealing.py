"""Key files."""

from pathlib import Path


def read_key(path: Path) -> bytes:
    """The 32 bytes of a key file made by ``fedrecgel store make-key``."""
    raise NotImplementedError
