"""Find the file of a known data set: in the data folder, in the cache, or at its publisher."""

import hashlib
import os
import time
import urllib.error
import urllib.request
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

from fedrecgel.common.data.known import KNOWN, Archive, KnownSet
from fedrecgel.common.errors import DataError

TIMEOUT = 20.0
"""Seconds without an answer after which a download is given up."""
LONGEST = 600.0
"""Seconds a download may take in all."""
LARGEST = 200 * 2**20


def find_known(name: str) -> Path:
    """Return the file of a known data set, downloading it if need be."""
    known = KNOWN[name]
    folders = [folder / name for folder in _data_folders()]
    for folder in folders:
        for file in known.files:
            if (folder / file).is_file():
                return folder / file
    if known.archive is None:
        raise DataError(_where_to_get(name, known, folders[0]))
    try:
        return _download(known.archive, folders[-1])
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        reason = str(error) or type(error).__name__
        hint = _where_to_get(name, known, folders[0])
        raise DataError(f"{known.archive.url} failed ({reason}); {hint}") from None


def _data_folders() -> list[Path]:
    """Return the user's data folder, if set, and the cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedrecgel"
    own = os.environ.get("FEDRECGEL_DATA")
    return [Path(own), cache] if own else [cache]


def _where_to_get(name: str, known: KnownSet, folder: Path) -> str:
    return (
        f"{name} is not here: get {known.title} from {known.page} (licence: {known.licence}) and"
        f" put it at {folder / known.files[0]} (FEDRECGEL_DATA sets the folder)"
    )


def _download(archive: Archive, folder: Path) -> Path:
    """Fetch, check and unpack; the file appears in ``folder`` whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / Path(archive.member).name
    with TemporaryDirectory(prefix=".download-", dir=folder) as work:
        packed = Path(work) / "archive.zip"
        found = _fetch(archive.url, packed)
        if found != archive.sha256:
            raise OSError(f"sha256 is {found}, expected {archive.sha256}")
        with zipfile.ZipFile(packed) as content:
            unpacked = Path(work) / target.name
            unpacked.write_bytes(content.read(archive.member))
        os.replace(unpacked, target)
    return target


def _fetch(url: str, target: Path) -> str:
    digest, size, deadline = hashlib.sha256(), 0, time.monotonic() + LONGEST
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer, target.open("wb") as file:
        while block := answer.read(2**16):
            size += len(block)
            if size > LARGEST or time.monotonic() > deadline:
                raise OSError(f"gave up after {size:,} bytes")
            digest.update(block)
            file.write(block)
    return digest.hexdigest()
