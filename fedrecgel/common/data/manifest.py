"""The manifest of a prepared data set: what it was made from, by which rules, and what it holds."""

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import fedrecgel
from fedrecgel.common.errors import DataError

FORMAT = "fedrecgel-dataset"
FORMAT_VERSION = 2
"""2: lists of held-out items under splits with several a user. Version 1 is read as 2."""
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """Everything about a prepared data set but the data; the content of ``manifest.json``."""

    name: str
    """A known name, ``synthetic``, or the stem of the source file."""
    protocol: str
    """``default`` or ``paper``."""
    seed: int
    split: str = "leave-one-out"
    """``leave-one-out``, ``time`` or ``share``; with the latter two the arrays have lists."""
    hash: str = ""
    """sha256 over all arrays: two data sets with equal hashes hold the same numbers."""
    command: str = "fedrecgel prepare SOURCE --out DIR"
    """The command that makes this data set again."""
    source: Mapping[str, object] = field(default_factory=dict)
    rules: Mapping[str, object] = field(default_factory=dict)
    statistics: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """Users, items, interactions and density: ``raw``, ``filtered``, and the ``split``."""
    report: Mapping[str, object] = field(default_factory=dict)
    """What each step of the preparation counted."""
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    """sha256 of every other file of the folder, by its relative path."""

    def to_json(self) -> str:
        """Return the text of ``manifest.json``."""
        head = {"format": FORMAT, "format_version": FORMAT_VERSION}
        return json.dumps(head | asdict(self), indent=2, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Read and check ``folder/manifest.json``."""
    remake = "make it with: fedrecgel prepare SOURCE --out " + str(folder)
    try:
        content = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{folder} is not a prepared data set (no {MANIFEST}); {remake}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / MANIFEST} cannot be read ({error}); {remake}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise DataError(f"{folder / MANIFEST} is not the manifest of a data set; {remake}")
    command = content.get("command", "fedrecgel prepare SOURCE --out DIR")
    version = content.get("format_version")
    if version == 1:
        content["split"] = "leave-one-out"
    elif version != FORMAT_VERSION:
        raise DataError(
            f"{folder} has data format version {version}, this is fedrecgel"
            f" {fedrecgel.__version__} with version {FORMAT_VERSION}; remake it: {command}"
        )
    kinds = {"name": str, "protocol": str, "seed": int, "hash": str, "command": str, "split": str}
    values: dict[str, Any] = {}
    for name in (entry.name for entry in fields(Manifest)):
        values[name] = content.get(name)
        if not isinstance(values[name], kinds.get(name, dict)):
            raise DataError(f"{folder / MANIFEST} has no proper {name!r}; remake it: {command}")
    return Manifest(**values)


def library_versions() -> dict[str, str]:
    """Versions of everything that had a part in preparing the data."""
    return {
        "fedrecgel": fedrecgel.__version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("numpy", "pandas", "pyarrow")},
    }


def file_hash(path: Path) -> str:
    """sha256 of a file as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def arrays_hash(arrays: Mapping[str, NDArray[np.generic]]) -> str:
    """sha256 over names, types, shapes and contents of arrays, in the order of their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.view(np.uint8).data if array.size else b"")
    return digest.hexdigest()
