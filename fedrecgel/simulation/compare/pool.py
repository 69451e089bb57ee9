"""Processes that make cells beside each other, each with so much processor time.

Each is a plain child process with one thread, so a cell that takes too long, needs too much memory
or crashes ends alone; another process takes its place.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO, Any

from fedrecgel.simulation.compare.plan import Cell, foreign_module
from fedrecgel.simulation.compare.store import Outcome, Store

__all__ = ["Job", "Limit", "Pool"]

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """A cell to make, and where its data are.

    Attributes
    ----------
    rounds
        That it has; 0 for a reference.
    whole
        Rounds of the run that its settings are for. A trial may be shorter; if its settings are too
        slow for a seed in the same time, it is infeasible: chosen, it would leave the row empty.
    """

    cell: Cell
    data: Path
    rounds: int = 0
    whole: int = 0


@dataclass(frozen=True)
class Limit:
    """When a cell takes too long: ``seconds`` of processor time for a whole run; None: never."""

    seconds: float | None = None

    def exceeded(self, job: Job, elapsed: float, rounds: int, at: float) -> dict[str, Any] | None:
        """What to note of a job that would not end in time; None while it may.

        Parameters
        ----------
        elapsed
            Seconds of processor time that it has had.
        rounds, at
            Rounds that are done since then, and the seconds when the last of them was.
        """
        if self.seconds is None:
            return None
        told = self._told(job, at / rounds if rounds else elapsed, not rounds)
        if told["estimate"] > self.seconds:
            # The first rounds are not like the others; a twentieth of the time is enough to judge.
            judged = rounds >= 2 and elapsed >= self.seconds / 20
            return told if judged or elapsed > self.seconds else None
        if elapsed <= self.seconds:
            return None
        # It is not the rounds that take so long, but what comes after them.
        return told | {
            "seconds_per_round": None,
            "rounds": 0,
            "at_least": True,
            "estimate": elapsed,
        }

    def judge(self, job: Job, found: Outcome) -> Outcome | None:
        """How a cell ended, as this limit sees it; None if it is to be made again.

        It may have been made under another limit, and a trial for runs of another length.
        """
        each = found.values.get("seconds_per_round")  # of a trial, or of one that took too long
        if found.status == "failed" or (found.status == "infeasible" and not found.values):
            return None  # perhaps for want of memory, disk, or of a library that is there by now
        told = dict(found.values)
        if each is not None:
            told = self._told(job, each, found.values.get("at_least", False))
        if self.seconds is None or told.get("estimate", 0.0) <= self.seconds:
            return found if found.status == "done" else None
        return Outcome("infeasible", too_long(told), told)

    def _told(self, job: Job, each: float, at_least: bool) -> dict[str, Any]:
        whole = max(job.rounds, job.whole)
        return {
            "seconds_per_round": each if whole else None,
            "at_least": at_least,
            "rounds": whole,
            "estimate": each * whole if whole else each,
            "limit": self.seconds,
        }


@dataclass
class _Worker:
    number: int
    process: "subprocess.Popen[str]"
    reader: threading.Thread
    job: Job | None = None
    elapsed: float = 0.0
    first: int | None = None
    rounds: int = 0
    at: float = 0.0


@dataclass
class Pool:
    """Up to ``workers`` processes.

    Attributes
    ----------
    on_round
        Told of a job and the round that it finished.
    """

    store: Store
    workers: int
    limit: Limit
    on_round: Callable[[Job, int], None] = lambda job, round: None
    _running: dict[int, _Worker] = field(default_factory=dict)
    _heard: "SimpleQueue[tuple[int, dict[str, Any] | None]]" = field(default_factory=SimpleQueue)
    _started: int = 0

    @property
    def free(self) -> bool:
        """Whether a job can be given."""
        return self._idle() is not None or len(self._running) < self.workers

    @property
    def busy(self) -> bool:
        """Whether a job is being done."""
        return any(worker.job is not None for worker in self._running.values())

    def give(self, job: Job) -> None:
        """Begin a job."""
        worker = self._idle() or self._start()
        worker.job, worker.elapsed = job, 0.0
        worker.first, worker.rounds, worker.at = None, 0, 0.0
        order = {"cell": job.cell.to_json(), "data": str(job.data), "store": str(self.store.folder)}
        order["module"] = "" if job.cell.kind == "reference" else foreign_module(job.cell.name)
        assert worker.process.stdin is not None
        with suppress(OSError):  # it has died: its reader says so
            worker.process.stdin.write(json.dumps(order) + "\n")
            worker.process.stdin.flush()

    def wait(self, seconds: float = 0.5) -> list[tuple[Job, Outcome]]:
        """Jobs that ended; returns early with the first, after ``seconds`` at the latest."""
        ended: list[tuple[Job, Outcome]] = []
        try:
            number, told = self._heard.get(timeout=seconds)
            while True:
                self._hear(number, told, ended)
                number, told = self._heard.get_nowait()
        except Empty:
            pass
        for worker in list(self._running.values()):
            self._watch(worker, ended)
        return ended

    def close(self) -> None:
        """End all processes, whatever they do; half-made cells keep their checkpoints."""
        for worker in list(self._running.values()):
            self._end(worker)

    def _idle(self) -> _Worker | None:
        return next((w for w in self._running.values() if w.job is None), None)

    def _start(self) -> _Worker:
        self._started += 1
        log = self.store.folder / f"worker-{self._started % max(self.workers, 1)}.log"
        with log.open("w", encoding="utf-8") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "fedrecgel.simulation.compare.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                encoding="utf-8",
                env={**os.environ, **dict.fromkeys(THREADS, "1"), "PYTHONPATH": _path()},
                start_new_session=True,  # Ctrl-C is for us: it would stop them in mid-write
            )
        heard = (self._started, process.stdout)
        reader = threading.Thread(target=self._read, args=heard, daemon=True)
        worker = self._running[self._started] = _Worker(self._started, process, reader)
        reader.start()
        return worker

    def _read(self, number: int, answers: IO[str]) -> None:
        with answers:
            for line in answers:
                self._heard.put((number, json.loads(line)))
        self._heard.put((number, None))

    def _hear(
        self, number: int, told: dict[str, Any] | None, ended: list[tuple[Job, Outcome]]
    ) -> None:
        worker = self._running.get(number)
        if worker is None or worker.job is None:
            if worker is not None and told is None:
                self._end(worker)
            return  # ended by us before
        if told is None:
            code = self._end(worker)
            self._note(worker.job, Outcome("failed", f"its process died (exit {code})"), ended)
        elif "elapsed" in told:
            worker.elapsed = told["elapsed"]
            if "round" not in told:
                return
            # A cell that was half made goes on at a later round.
            worker.first = told["round"] - 1 if worker.first is None else worker.first
            worker.rounds, worker.at = told["round"] - worker.first, worker.elapsed
            self.on_round(worker.job, told["round"])
        else:
            job, worker.job = worker.job, None
            outcome = self.store.read(job.cell)
            ended.append((job, outcome or Outcome("failed", "its files could not be written")))

    def _watch(self, worker: _Worker, ended: list[tuple[Job, Outcome]]) -> None:
        if worker.job is None:
            return
        late = self.limit.exceeded(worker.job, worker.elapsed, worker.rounds, worker.at)
        if late is not None:
            self._end(worker)
            self._note(worker.job, Outcome("infeasible", too_long(late), late), ended)

    def _note(self, job: Job, outcome: Outcome, ended: list[tuple[Job, Outcome]]) -> None:
        self.store.write(job.cell, outcome)
        ended.append((job, outcome))

    def _end(self, worker: _Worker) -> int:
        self._running.pop(worker.number, None)
        worker.process.kill()
        assert worker.process.stdin is not None
        with suppress(OSError):
            worker.process.stdin.close()
        worker.reader.join()
        return worker.process.wait()


def _path() -> str:
    """What this process can import, for others: it may have been told so after it began."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)


def too_long(late: dict[str, Any]) -> str:
    """Say in one line why a cell is infeasible."""
    about = "more than " if late["at_least"] else ""
    estimate = f"{late['estimate']:,.0f}" if late["estimate"] >= 10 else f"{late['estimate']:.2g}"
    told = f"{estimate} s, the limit is {late['limit']:,g} s"
    if not late["rounds"]:
        return f"took {about}{told}"
    return f"{about}{late['seconds_per_round']:.2g} s a round x {late['rounds']} rounds = {told}"
