"""Rows that cannot be used: counted by reason, the first ones kept with their place."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fedrecgel.common.errors import DataError

SHOWN = 10
TEXT_LENGTH = 80


@dataclass
class Problems:
    """Collects bad rows; the report prints the first ones of the file."""

    strict: bool = False
    """Whether the first bad row is an error."""
    shown: Callable[[str], str] = str
    """How a name of a place is shown."""
    reasons: Counter[str] = field(default_factory=Counter)
    _first: list[tuple[int, int, str, str, str]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Bad rows so far."""
        return sum(self.reasons.values())

    def add(self, reason: str, count: int, first: Sequence[tuple[int, int, str, str]]) -> None:
        """Count rows of one reason.

        ``first`` has the first ones: number of the file, line, how to name it, and its text.
        """
        if not count:
            return
        self.reasons[reason] += count
        for part, line, name, text in first:
            self._first.append((part, line, self.shown(name), reason, _short(text)))
        self._first.sort()
        del self._first[SHOWN:]
        if self.strict:
            raise DataError(f"{self.first_line()}; without --strict such rows are dropped")

    def first_line(self) -> str:
        """Name the first bad row in one line."""
        _, _, name, reason, text = self._first[0]
        return f"{name}: {reason}: {text!r}"

    def to_report(self) -> dict[str, object]:
        """Return counts and the first rows, for the manifest."""
        first = [
            {"place": name, "reason": reason, "text": text}
            for _, _, name, reason, text in self._first
        ]
        return {"count": self.count, "reasons": dict(self.reasons), "first": first}


def _short(text: str) -> str:
    return text if len(text) <= TEXT_LENGTH else text[: TEXT_LENGTH - 3] + "..."
