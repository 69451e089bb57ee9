"""Bytes of a text file to clean UTF-8 lines; never by what the platform happens to prefer."""

import codecs
from dataclasses import dataclass
from pathlib import Path

from fedrecgel.common.errors import DataError

_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True)
class Text:
    """The content of a file as UTF-8 with plain line feeds."""

    data: bytes
    encoding: str
    notes: tuple[str, ...]


def read_text(path: Path) -> Text:
    """Read a file; UTF-8 (with or without byte-order mark), marked UTF-16, else Latin-1 and a note.

    A byte-order mark is removed; CRLF and lone CR line ends become LF.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    data, encoding, notes = _to_utf8(data, path)
    data = data.replace(b"\r\n", b"\n")
    if b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    if not data.strip():
        raise DataError(f"{path} is empty")
    return Text(data, encoding, notes)


def _to_utf8(data: bytes, path: Path) -> tuple[bytes, str, tuple[str, ...]]:
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            data = data[len(mark) :]
            if encoding != "utf-8":
                try:
                    return data.decode(encoding).encode(), encoding, ()
                except UnicodeError as error:
                    raise DataError(f"{path} is not valid {encoding}: {error}") from None
            break
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        note = f"{path.name} is not UTF-8 (line {line}): read as Latin-1; save it as UTF-8 if wrong"
        return data.decode("latin-1").encode(), "latin-1", (note,)
    return data, "utf-8", ()
