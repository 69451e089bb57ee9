"""Write a prepared data set so that nobody ever sees half of one."""

import ctypes
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fedrecgel.common.data.manifest import MANIFEST, Manifest, arrays_hash, file_hash, read_manifest
from fedrecgel.common.data.split import PARTS
from fedrecgel.common.errors import DataError

_EXCHANGE = 2
_AT_CWD = -100


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse a target that exists, unless it is empty or a data set that may be overwritten."""
    if target.is_symlink() or not target.exists():
        parent = target.resolve().parent
        if target.is_symlink() or (parent.exists() and not parent.is_dir()):
            raise DataError(f"{target} cannot be a data folder: it is a link or lies in a file")
        return
    if not target.is_dir():
        raise DataError(f"{target} is a file; --out needs a folder")
    if not any(target.iterdir()):
        return
    if not (target / MANIFEST).is_file():
        raise DataError(f"{target} exists and is not a prepared data set; choose another --out")
    if not overwrite:
        raise DataError(f"{target} exists; choose another --out or add --overwrite")
    if not _is_data_set(target):
        raise DataError(f"{target} exists and is not a prepared data set; choose another --out")


def _is_data_set(folder: Path) -> bool:
    """Whether the folder is a data set, perhaps of another format version or a damaged one."""
    try:
        read_manifest(folder)
    except DataError as error:
        return "data format version" in str(error)
    return True


def write_data_set(
    target: Path,
    manifest: Manifest,
    arrays: Mapping[str, NDArray[np.generic]],
    tables: Mapping[str, Mapping[str, NDArray[np.generic]]],
    *,
    overwrite: bool = False,
) -> Manifest:
    """Write everything into a sibling folder, then put it in place in one step.

    Returns
    -------
    Manifest
        As written: with the hash over the arrays and those of the files.
    """
    check_target(target, overwrite=overwrite)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise DataError(f"cannot write beside {target}: {error.strerror or error}") from None
    try:
        manifest = _fill(work, manifest, arrays, tables)
        work.chmod(0o755)
        check_target(target, overwrite=overwrite)
        _put_in_place(work, target)
    except OSError as error:
        raise DataError(f"cannot write {target}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return manifest


def _fill(
    folder: Path,
    manifest: Manifest,
    arrays: Mapping[str, NDArray[np.generic]],
    tables: Mapping[str, Mapping[str, NDArray[np.generic]]],
) -> Manifest:
    (folder / "arrays").mkdir()
    for name, array in arrays.items():
        np.save(folder / "arrays" / f"{name}.npy", array, allow_pickle=False)
    for name, columns in tables.items():
        pq.write_table(
            pa.table(_with_names(columns)), folder / f"{name}.parquet", compression="zstd"
        )
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    hashes = {path.relative_to(folder).as_posix(): file_hash(path) for path in files}
    manifest = replace(manifest, hash=arrays_hash(arrays), files=hashes)
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def _with_names(columns: Mapping[str, NDArray[np.generic]]) -> dict[str, pa.Array]:
    """Write the parts of the split by name."""
    table = dict(columns)
    if "part" in table:
        table["part"] = pa.DictionaryArray.from_arrays(pa.array(table["part"]), list(PARTS))
    return table


def _put_in_place(work: Path, target: Path) -> None:
    """Move ``work`` to ``target``; what was there ends up in ``work``."""
    if not target.exists() or not any(target.iterdir()):
        os.replace(work, target)
    elif not _exchange(work, target):
        # No atomic exchange here: for an instant there is no target, but never half of one.
        aside = work.with_name(work.name + ".old")
        os.replace(target, aside)
        try:
            os.replace(work, target)
        except OSError:
            os.replace(aside, target)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step where the system can (Linux)."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    if rename is None:
        return False
    code = rename(_AT_CWD, os.fsencode(one), _AT_CWD, os.fsencode(other), _EXCHANGE)
    return int(code) == 0
