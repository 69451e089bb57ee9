"""A cache that forgets what was asked for longest ago."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Bounded(Generic[Value]):
    """At most so many values by user position; any thread may ask."""

    def __init__(self, size: int) -> None:
        self._size = max(1, size)
        self._values: OrderedDict[int, Value] = OrderedDict()
        self._guard = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: int) -> Value | None:
        """The value, now the one asked for last."""
        with self._guard:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: int, value: Value) -> None:
        """Keep a value."""
        with self._guard:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._size:
                self._values.popitem(last=False)
