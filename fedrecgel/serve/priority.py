"""Answers first: long work waits between its steps while somebody is being answered."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

YIELD = 0.001
"""Seconds that a step gives away in any case."""
LONGEST = 0.02
"""Seconds that a step waits at most: under full load the work goes on too."""


class Priority:
    """Counts the answers in work."""

    def __init__(self) -> None:
        self._answers = 0
        self._changed = threading.Condition()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """While the block runs, long work waits."""
        with self._changed:
            self._answers += 1
        try:
            yield
        finally:
            with self._changed:
                self._answers -= 1
                self._changed.notify_all()

    def let_pass(self) -> None:
        """Wait until nobody is being answered, also whoever waits for this core to begin."""
        time.sleep(YIELD)
        with self._changed:
            self._changed.wait_for(lambda: not self._answers, LONGEST)
