"""A text file of any size, packed or not, as blocks of clean UTF-8 lines.

Nothing here depends on what the platform prefers, and no more than a few blocks are in memory.
"""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pyarrow as pa

from fedrecgel.common.errors import DataError

BLOCK = 16 * 2**20
"""Bytes of a block; whole lines, so a little less or, for very long lines, more."""
LONGEST_LINE = 256 * 2**20
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_PACKED = ((b"\x1f\x8b", "gzip"), (b"\x28\xb5\x2f\xfd", "zstd"))


def first_bytes(path: Path, count: int = 4_096) -> bytes:
    """Return how the unpacked content begins."""
    with _errors(path), _open(path) as file:
        return file.read(count)


class TextFile:
    """UTF-8 (with or without byte-order mark), marked UTF-16, else Latin-1 and a note.

    A byte-order mark is removed; CRLF and lone CR line ends become LF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: tuple[str, ...] = ()
        head = first_bytes(path)
        marked = [(mark, name) for mark, name in _MARKS if head.startswith(mark)]
        self._mark, self.encoding = marked[0] if marked else (b"", "utf-8")
        if self.encoding == "utf-8" and (line := self._first_bad_line()):
            self.encoding = "latin-1"
            self.notes = (
                f"{path.name} is not UTF-8 (line {line}): read as Latin-1; save it as UTF-8 if"
                " wrong",
            )

    def blocks(self) -> Iterator[bytes]:
        """Yield whole lines; the first block is never blank."""
        rest, end, empty = b"", b"", True
        for data in self._decoded():
            data = rest + data
            end = end or _line_end(data)
            cut = data.rfind(end) + 1 if end else 0
            data, rest = data[:cut], data[cut:]
            if len(rest) > LONGEST_LINE:
                raise DataError(f"{self.path} has a line of more than {LONGEST_LINE:,} bytes")
            if data and not (empty and not data.strip()):
                empty = False
                yield _line_feeds(data, end)
            elif data:
                rest = data + rest
        if rest.strip():
            yield _line_feeds(rest, end)
        elif empty:
            raise DataError(f"{self.path} is empty")

    def _decoded(self) -> Iterator[bytes]:
        """Yield UTF-8 without mark; characters may be cut between blocks."""
        decoder = (
            None if self.encoding == "utf-8" else codecs.getincrementaldecoder(self.encoding)()
        )
        skip = len(self._mark)
        for data in self._raw():
            data, skip = data[skip:], max(skip - len(data), 0)
            if decoder is None:
                yield data
                continue
            try:
                yield decoder.decode(data).encode()
            except UnicodeError as error:
                raise DataError(f"{self.path} is not valid {self.encoding}: {error}") from None
        if decoder is not None and self.encoding.startswith("utf-16") and decoder.getstate()[0]:
            raise DataError(f"{self.path} is not valid {self.encoding}: it ends inside a character")

    def _raw(self) -> Iterator[bytes]:
        with _errors(self.path), _open(self.path) as file:
            while data := file.read(BLOCK):
                yield data

    def _first_bad_line(self) -> int:
        """Line where the file stops to be UTF-8; 0 if it does not."""
        decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
        for data in self._raw():
            try:
                if not data.isascii() or decoder.getstate()[0]:
                    decoder.decode(data)
            except UnicodeDecodeError as error:
                return line + error.object.count(b"\n", 0, error.start)
            line += data.count(b"\n")
        return line if decoder.getstate()[0] else 0


def _line_end(data: bytes) -> bytes:
    """Tell what ends the lines; nothing as long as there is no line end."""
    if b"\n" in data:
        return b"\n"
    return b"\r" if b"\r" in data[:-1] else b""


def _line_feeds(data: bytes, end: bytes) -> bytes:
    return data.replace(b"\r", b"\n") if end == b"\r" else data.replace(b"\r\n", b"\n")


def _open(path: Path) -> BinaryIO:
    file = path.open("rb")
    head = file.read(4)
    file.seek(0)
    for mark, codec in _PACKED:
        if head.startswith(mark):
            return cast(BinaryIO, pa.CompressedInputStream(file, codec))
    return file


class _errors:
    """What can go wrong while reading, in one line."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, OSError | pa.ArrowException):
            reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
            raise DataError(f"{self.path} cannot be read: {reason}") from None
