"""Where the time of a round goes: a stopwatch around the package's functions, by their names."""

import functools
import importlib
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

FLOWER = "messages: Flower and the rest"
PACKING = "messages: pack, unpack, copy"
SAMPLING = "sampling"
COMPUTE = "forward and backward"
REDUCTION = "gather and reduce"
STEP = "private step and state"
SERVER = "server step and checks"
EVALUATION = "evaluation"
PARTS = (SAMPLING, COMPUTE, REDUCTION, STEP, PACKING, FLOWER, SERVER)

NAMES = {
    "fedrecgel.client.app:train": STEP,
    "fedrecgel.client.app:evaluate": EVALUATION,
    "fedrecgel.common.algorithms.gradient:draw_samples": SAMPLING,
    "fedrecgel.common.algorithms.gradient:cut_blocks": REDUCTION,
    "fedrecgel.common.algorithms.gradient:GradientAlgorithm.block_update": REDUCTION,
    "fedrecgel.common.algorithms.gradient:GradientAlgorithm.local_update": COMPUTE,
    "fedrecgel.common.algorithms.gradient:adam_step": STEP,
    "fedrecgel.common.algorithms.gradient:GradientAlgorithm.aggregate": SERVER,
    "fedrecgel.common.scorers.neumf_block:NeuMFKernel.sam_gradients": COMPUTE,
    "fedrecgel.common.scorers.neumf_block:NeuMFKernel.private_gradient": COMPUTE,
    "fedrecgel.common.scorers.dot:DotKernel.sam_gradients": COMPUTE,
    "fedrecgel.common.scorers.dot:DotKernel.private_gradient": COMPUTE,
    "fedrecgel.common.state:Update.total": REDUCTION,
    "fedrecgel.server.acceptance:norm_per_user": SERVER,
    "fedrecgel.server.training:check_reply": SERVER,
    "fedrecgel.server.strategy:pack_state": PACKING,
    "fedrecgel.server.training:pack_train_request": PACKING,
    "fedrecgel.server.training:unpack_train_reply": PACKING,
    "fedrecgel.client.app:unpack_train_request": PACKING,
    "fedrecgel.client.app:pack_train_reply": PACKING,
    "fedrecgel.simulation.grid:_copy": PACKING,
}
"""Which part a function's own time belongs to; a function keeps the name its caller knows."""

TOTALS = {"fedrecgel.client.app:train": "train"}
"""Functions whose time is also counted with everything they call."""


class Clock:
    """Seconds by part, each without the parts inside it.

    Parameters
    ----------
    now
        `time.thread_time` (CPU seconds of one thread, untouched by other work on the machine) or
        `time.perf_counter`.
    """

    def __init__(self, now: Callable[[], float] = time.thread_time) -> None:
        self._now = now
        self._stack: list[str] = []
        self._since = 0.0
        self.seconds: dict[str, float] = defaultdict(float)

    def lap(self) -> dict[str, float]:
        """Seconds since the last lap."""
        self._charge()
        seconds, self.seconds = dict(self.seconds), defaultdict(float)
        return seconds

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Charge what happens inside to this part; nothing is split up inside evaluation."""
        self._charge()
        self._stack.append(EVALUATION if EVALUATION in self._stack else name)
        try:
            yield
        finally:
            self._charge()
            self._stack.pop()

    def _charge(self) -> None:
        now = self._now()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Watch the functions in `NAMES` for a while."""
        undo = []
        try:
            for name, part in NAMES.items():
                holder, attribute = _find(name)
                found = holder.__dict__[attribute]
                undo.append((holder, attribute, found))
                plain = found.__func__ if isinstance(found, classmethod) else found
                watched = self._watched(plain, part, TOTALS.get(name))
                setattr(holder, attribute, type(found)(watched) if plain is not found else watched)
            yield
        finally:
            for holder, attribute, found in undo:
                setattr(holder, attribute, found)

    def _watched(
        self, function: Callable[..., Any], part: str, total: str | None
    ) -> Callable[..., Any]:
        @functools.wraps(function)
        def watched(*args: object, **kwargs: object) -> object:
            began = self._now()
            with self.part(part):
                result = function(*args, **kwargs)
            if total:
                self.seconds[total] += self._now() - began
            return self._stepwise(result, part) if isinstance(result, Generator) else result

        return watched

    def _stepwise(self, steps: Generator[Any, None, None], part: str) -> Iterator[Any]:
        while True:
            with self.part(part):
                step = next(steps, None)
            if step is None:
                return
            yield step


def _find(name: str) -> tuple[Any, str]:
    """The module or class that holds a function, and its name there."""
    module, _, path = name.partition(":")
    holder: Any = importlib.import_module(module)
    *outer, attribute = path.split(".")
    for part in outer:
        holder = getattr(holder, part)
    return holder, attribute
