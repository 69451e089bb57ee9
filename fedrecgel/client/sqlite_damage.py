"""What damage of a SQLite file looks like, and the line that says so.

SQLite looks at no type when it reads, and much that is not what was written is valid to it.
"""

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedrecgel.common.errors import RunError


def is_meta(meta: dict[object, object]) -> bool:
    """Whether a store's head is one: its site, and salt and check where it is sealed."""
    salt, check = meta.get("salt"), meta.get("check")
    sealed = isinstance(salt, bytes) and isinstance(check, bytes)
    return isinstance(meta.get("site"), str) and (sealed or (salt is None and check is None))


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_bytes(value: object) -> bool:
    return isinstance(value, bytes)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and 0 <= value < _YEAR_9999


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


_YEAR_9999 = 253_370_764_800
# By the name of a column in an answer.
_VALUES: dict[str, Callable[[object], bool]] = {
    **dict.fromkeys(("id", "template", "about"), _is_text),
    **dict.fromkeys(("round", "forgotten"), _is_count),
    **dict.fromkeys(("since", "chosen", "first", "last"), _or_none(_is_count)),
    "saved": _is_time,
    "finished": _or_none(_is_time),
    "state": _is_bytes,
    "ranks": _or_none(_is_bytes),
    "user": lambda value: _is_text(value) or _is_bytes(value),
}


def checked(path: Path, cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """A row as it was read; a value that nobody ever wrote there is damage."""
    for (name, *_), value in zip(cursor.description, row, strict=True):
        if name in _VALUES and not _VALUES[name](value):
            raise damage(path, f"'{name}' of a row is not what was saved")
    return row


def damage(path: Path, found: str) -> RunError:
    """What to say of a file that holds something else than was written."""
    return RunError(f"{path} is damaged: {found}; restore it from a backup")


_CANNOT_WRITE = "cannot be opened or written; check that it, its folder and its -wal file are yours"
LINES = {
    "NOTADB": "is not a private store of fedrecgel, or is damaged; restore it from a backup, or "
    "move it away to begin anew",
    "CORRUPT": "is damaged; restore it from a backup, or move it away to begin anew",
    "FULL": "cannot grow, the disk is full; nothing of it is lost: free space and go on",
    "IOERR": "cannot be read or written ({error}); nothing of it is lost: check the disk, its free "
    "space and limits, and go on",
    "READONLY": _CANNOT_WRITE,
    "CANTOPEN": _CANNOT_WRITE,
    "PERM": _CANNOT_WRITE,
    "BUSY": "is locked by another process; wait for it or stop it",
    "LOCKED": "is locked by another process; wait for it or stop it",
}


def line_of(error: sqlite3.Error | UnicodeDecodeError) -> str:
    """What an error of SQLite means here; an unknown table or the like is damage; "": no line."""
    kind, text = _kind(error), " ".join(str(error).split())
    if not kind:
        return ""
    return LINES.get(kind, "is damaged ({error}); restore it from a backup").format(error=text)


def means_damage(error: BaseException) -> bool:
    """Whether an error while a file is read says that the file is damaged."""
    kind = _kind(error)
    return kind in ("CORRUPT", "NOTADB") or bool(kind and kind not in LINES)


def _kind(error: BaseException) -> str:
    """SQLite's name of what went wrong; CORRUPT for a text that is none; "" for anything else."""
    if isinstance(error, UnicodeDecodeError):  # of a text in the file, or in SQLite's own message
        return "CORRUPT"
    code: str | None = getattr(error, "sqlite_errorname", None)
    if code is None:  # of Python: a text in the file that is none, or a defect of ours
        return "CORRUPT" if isinstance(error, sqlite3.OperationalError) else ""
    return code.removeprefix("SQLITE_").partition("_")[0]
