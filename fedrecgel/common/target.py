"""Where a command may write: never over what it reads."""

from pathlib import Path

from fedrecgel.common.errors import RunError


def check_file(target: Path, *, overwrite: bool) -> None:
    """Refuse a folder, and a file that is there unless it may be replaced.

    Raises
    ------
    RunError
        Naming it.
    """
    if target.is_dir():
        raise RunError(f"{target} is a folder; choose another --out, e.g. a file in it")
    if target.exists() and not overwrite:
        raise RunError(f"{target} exists already; choose another --out or add --overwrite")


def check_folder(target: Path) -> None:
    """Refuse a file where a folder is to be made, or is.

    Raises
    ------
    RunError
        Naming it.
    """
    if target.exists() and not target.is_dir():
        raise RunError(f"{target} is a file; choose another --out")


def refuse_replacing(target: Path, *inputs: Path) -> None:
    """Refuse a target that is an input, or a folder that holds one.

    Raises
    ------
    RunError
        Naming both.
    """
    place = target.resolve()
    for path in inputs:
        if path.resolve().is_relative_to(place):
            raise RunError(f"{target} would replace {path}, which is read; choose another --out")


def refuse_inside(target: Path, *folders: Path) -> None:
    """Refuse a target that is one of these folders, or lies in one.

    Raises
    ------
    RunError
        Naming both.
    """
    place = target.resolve()
    for folder in folders:
        if place.is_relative_to(folder.resolve()):
            raise RunError(f"{target} lies in {folder}, which is read; choose another --out")
