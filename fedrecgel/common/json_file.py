"""JSON files that are complete or as they were."""

import json
import os
from pathlib import Path

import numpy as np


def write_json(path: Path, obj: object, mode: int = 0o644) -> None:
    """Write ``obj`` so that the file is either complete or as it was. A nan is our defect.

    ``mode`` is that of a new file, less the umask.
    """
    text = json.dumps(obj, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        file = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, mode)
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            stream.write(text + "\n")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _plain(obj: object) -> object:
    if isinstance(obj, np.generic):
        return obj.item()
    if isinstance(obj, Path):
        return str(obj)
    raise TypeError(f"{type(obj).__name__} has no place in a result file")
