"""Items of somebody new, from a small file of their own."""

from pathlib import Path

from fedrecgel.common.data.read import read_interactions
from fedrecgel.common.errors import DataError


def items_of_file(path: Path) -> list[str]:
    """Item ids from a file with one id a line, or from a table with an item column.

    A table may hold one user only; it is read like any interaction file.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        lines = [","]
    words = [line.strip() for line in lines if line.strip()]
    if words and not any(
        mark in word for word in words for mark in (",", "\t", ";", "|", "::", " ")
    ):
        return words
    found = read_interactions(path)
    if len(set(found.user_ids)) > 1:
        raise DataError(
            f"{path} holds {len(set(found.user_ids))} users; a new user's file holds one"
        )
    return [str(item) for item in found.item_ids]
