"""Which files a source is made of, and of what format each is."""

import codecs
import hashlib
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from fedrecgel.common.data.guess import Choice
from fedrecgel.common.data.manifest import file_hash
from fedrecgel.common.data.parquet_tables import read_parquet
from fedrecgel.common.data.problems import Problems
from fedrecgel.common.data.tables import Table
from fedrecgel.common.data.text_file import first_bytes
from fedrecgel.common.data.text_tables import read_json_lines, read_separated
from fedrecgel.common.errors import DataError

STANDARD_INPUT = "-"
SPOOLED = "fedrecgel-stdin-"
_TEXT = ("csv", "tsv", "txt", "dat", "data", "inter")
_JSON = ("jsonl", "ndjson", "json")
_PARQUET = ("parquet", "pq")
SUFFIXES = tuple(f".{name}" for name in (*_TEXT, *_JSON, *_PARQUET))
_PACKED = (".gz", ".zst")
_FOREIGN = (
    (b"PK\x03\x04", "a zip archive or an Excel workbook; unpack it, or save the sheet as CSV"),
    (b"BZh", "packed by bzip2; unpack it, or pack it by gzip or zstd"),
    (b"\xfd7zXZ\0", "packed by xz; unpack it, or pack it by gzip or zstd"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive; unpack it"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook; save the sheet as CSV"),
    (b"SQLite format 3\0", "an SQLite database; save the table as CSV"),
    (b"\x89HDF", "an HDF5 file; save the table as CSV or Parquet"),
    (b"ARROW1", "an Arrow or Feather file; save the table as Parquet"),
)


@contextmanager
def stored(source: str | Path) -> Iterator[str | Path]:
    """Give a source that can be read again: a pipe is first written to a temporary file."""
    piped = str(source) == STANDARD_INPUT
    if not piped and not Path(source).is_fifo():
        yield source
        return
    if piped and sys.stdin.isatty():
        raise DataError("'-' reads standard input, but nothing is piped in; name a file")
    with TemporaryDirectory(prefix=SPOOLED) as folder:
        path = Path(folder) / "stdin"
        with path.open("wb") as file, nullcontext(sys.stdin) if piped else open(source) as pipe:
            shutil.copyfileobj(pipe.buffer, file, 2**20)
        try:
            yield path
        except DataError as error:
            raise DataError(shown(str(error), path)) from None


def shown(text: str, path: Path) -> str:
    """Name standard input, not the file it was written to."""
    spooled = path.parent.name.startswith(SPOOLED)
    return text.replace(str(path), "standard input") if spooled else text


def parts_of(source: Path) -> list[Path]:
    """Return the file, or the files of a folder in the order of their names."""
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise DataError(f"no file {str(source)!r}")
    parts = sorted(p for p in source.iterdir() if p.is_file() and _suffix(p) in SUFFIXES)
    if not parts:
        raise DataError(
            f"folder {source} has no files ending in {', '.join(SUFFIXES)}, or these with"
            f" {' or '.join(_PACKED)}"
        )
    return parts


def source_hash(source: Path) -> str:
    """sha256 of a file, or of the hashes of a folder's parts."""
    parts = parts_of(source)
    if len(parts) == 1:
        return file_hash(parts[0])
    lines = "".join(f"{file_hash(part)}  {part.name}\n" for part in parts)
    return hashlib.sha256(lines.encode()).hexdigest()


def read_part(
    path: Path, choice: Choice, problems: Problems, part: int, like: Table | None
) -> Table:
    """Read one file; rows that cannot even be split go to ``problems``."""
    head = first_bytes(path)
    if _suffix(path).lstrip(".") in _PARQUET or head.startswith(b"PAR1"):
        return read_parquet(path, choice)
    for mark, kind in _FOREIGN:
        if head.startswith(mark):
            raise DataError(f"{path} is {kind}")
    if _is_bare_utf16(head):
        raise DataError(f"{path} looks like UTF-16 without a byte-order mark; save it as UTF-8")
    if _suffix(path).lstrip(".") in _JSON or re.match(rb'(\xef\xbb\xbf)?\s*\{\s*"', head):
        return read_json_lines(path, choice, problems, part)
    return read_separated(path, choice, problems, part, like)


def _is_bare_utf16(head: bytes) -> bool:
    """Whether nearly every second byte is NUL and nearly none of those between, without a mark."""
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return False
    even, odd = head[0::2], head[1::2]
    shares = sorted(half.count(0) / max(len(half), 1) for half in (even, odd))
    return shares[0] < 0.1 and shares[1] > 0.9


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    return Path(path.stem).suffix.lower() if suffix in _PACKED else suffix
