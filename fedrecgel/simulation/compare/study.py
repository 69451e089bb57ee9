"""`compare`: from algorithms and data sets to one table, through cells that are made only once."""

import heapq
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np

from fedrecgel.common.config import Scalar, kebab
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, RunError
from fedrecgel.simulation.central.methods import METHODS
from fedrecgel.simulation.central.tuned import check_methods
from fedrecgel.simulation.compare.gather import against_best
from fedrecgel.simulation.compare.lines import AlgorithmLine, Line, ReferenceLine
from fedrecgel.simulation.compare.plan import (
    COMMON,
    check_settings,
    draw_trials,
    entries,
    given_to,
    refuse_unreachable,
    start,
    typed,
)
from fedrecgel.simulation.compare.pool import Job, Limit, Pool
from fedrecgel.simulation.compare.report import Comparison, Part, options_of
from fedrecgel.simulation.compare.store import Outcome, Store
from fedrecgel.simulation.compare.watch import Watch

__all__ = ["compare"]


def compare(
    data: Sequence[str | Path] | str | Path,
    out: str | Path,
    *,
    algorithms: Sequence[str] = ("all",),
    references: Sequence[str] | None = None,
    seeds: int = 5,
    budget: int = 8,
    trial_rounds: int = 0,
    workers: int | None = None,
    time_limit: float | None = None,
    log: str = "auto",
    command: str = "",
    **settings: Scalar,
) -> Comparison:
    """Compare algorithms on data sets at an equal budget of trials each.

    Every algorithm tries as many rows of its own grid on the validation items (its `search`; the
    first trial is where its preset starts), then trains with the best row once for each seed, and
    is tested once each. What is finished is kept in ``out`` by a hash of all that decides it; the
    same call goes on where it was stopped or killed, and adds what is new.

    Parameters
    ----------
    data
        Folders made by `fedrecgel.prepare`.
    out
        Folder of the tables, and of the cells under ``cells``.
    algorithms
        ``all``, or names, each with ``:paper`` to start from that preset.
    references
        Central methods beside them; None for all, empty for none. Popularity is always there.
    seeds
        Seeds 0, 1, ... so many.
    budget
        Trials of each algorithm; with 1 nothing is tuned and the start is taken.
    trial_rounds
        Rounds of a trial; 0 for as many as a seed has.
    workers
        Processes beside each other, of one thread each (default: the machine's cores); 0 only
        writes the table of what is there.
    time_limit
        Seconds of processor time for a cell. One that would take longer is marked infeasible, with
        the estimate; so is a trial at whose pace a seed would, since it cannot be chosen.
    log
        As in `fedrecgel.simulate`.
    command
        What the table says it was made by.
    settings
        For every algorithm that knows them, or for one as ``**{"fedmf.server-lr": 0.1}``; what is
        given is not searched. Rounds, fraction, evaluate-every and select-by are the same for all
        (`COMMON`).

    Raises
    ------
    FedRecError
        When what is asked for cannot be. A cell that fails is a line of the table.
    KeyboardInterrupt
        After Ctrl-C, with the tables of what is there written.
    """
    if seeds < 1 or budget < 1:
        raise ConfigError(f"seeds and budget must be at least 1, not {seeds} and {budget}")
    if workers is not None and workers < 0:
        raise ConfigError(f"workers must be 0 or more, not {workers}")
    if trial_rounds < 0:
        raise ConfigError(f"trial-rounds must be 0 or more, not {trial_rounds}")
    if time_limit is not None and not 0 < time_limit < math.inf:
        raise ConfigError(f"time-limit must be a number of seconds above 0, not {time_limit:g}")
    folders = [data] if isinstance(data, str | Path) else list(data)
    sets = _load([Path(folder) for folder in folders], budget)
    wanted, given = entries(algorithms), {_name(name): value for name, value in settings.items()}
    check_settings(given, wanted)
    check_methods(references or [])
    central = list(dict.fromkeys(["popularity", *(METHODS if references is None else references)]))

    cores = _cores() if workers is None else workers
    if cores:
        refuse_unreachable(wanted)
    starts = [(entry, start(entry, given)) for entry in wanted]
    store = Store.open(Path(out))
    lines: dict[int, list[Line]] = {}
    for place, (path, dataset) in enumerate(sets):
        lines[place] = [ReferenceLine(dataset, path, name, store) for name in central]
        for entry, first in starts:
            trials = draw_trials(first, budget, list(given_to(entry, given)))
            lines[place].append(
                AlgorithmLine(dataset, path, entry, trials, budget, seeds, trial_rounds, store)
            )
    # One algorithm after the other on all data sets, so that what is stopped has whole rows.
    everything = [line for row in zip(*lines.values(), strict=True) for line in row]
    outcomes: dict[str, Outcome] = {}
    said = {**COMMON, **typed(wanted, given)}
    options = options_of(seeds, budget, trial_rounds, cores, time_limit, said)
    stopped = False
    try:
        # Whoever only looks need not wait for one who is at work.
        with _alone(store) if cores else nullcontext():
            _work(everything, outcomes, store, cores, Limit(time_limit), log)
    except KeyboardInterrupt:
        stopped = True
    parts = []
    for place, (_, dataset) in enumerate(sets):
        rows = [line.row(outcomes) for line in lines[place]]
        against_best(rows)
        parts.append(Part(dataset, rows))
    comparison = Comparison.of(parts, options, command or _call(folders, out, algorithms))
    comparison.write(Path(out))
    if stopped:
        raise KeyboardInterrupt
    return comparison


def _load(folders: Sequence[Path], budget: int) -> list[tuple[Path, Dataset]]:
    if not folders:
        raise ConfigError("name at least one data set")
    sets = [(folder.resolve(), Dataset.load(folder)) for folder in folders]
    for place, (folder, dataset) in enumerate(sets):
        if any(dataset.hash == other.hash for _, other in sets[:place]):
            raise ConfigError(f"{folders[place]} is named twice, or a copy of another data set")
        if not np.any(np.asarray(dataset.test_items) >= 0):
            raise ConfigError(f"{folder} has no test items; nothing can be measured")
        if budget > 1 and not np.any(np.asarray(dataset.validation_items) >= 0):
            raise ConfigError(
                f"{folder} has no validation items to tune on (protocol {dataset.protocol}); "
                "use --budget 1, or prepare it with protocol default"
            )
    return sets


def _name(name: str) -> str:
    """A setting's name, kebab-case behind the algorithm's."""
    algorithm, dot, rest = name.partition(".")
    return f"{algorithm}.{kebab(rest)}" if dot else kebab(name)


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _call(folders: Sequence[str | Path], out: str | Path, algorithms: Sequence[str]) -> str:
    return f"fedrecgel.compare({[str(f) for f in folders]}, {str(out)!r}, {list(algorithms)})"


@contextmanager
def _alone(store: Store) -> Iterator[None]:
    """Refuse a second comparison in the same folder, where the system can tell."""
    try:
        import fcntl
    except ImportError:  # Windows
        yield
        return
    with (store.folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunError(
                f"another comparison is at work in {store.folder.parent}; wait for it, or choose "
                "another --out"
            ) from None
        yield


def _work(
    lines: Sequence[Line],
    outcomes: dict[str, Outcome],
    store: Store,
    workers: int,
    limit: Limit,
    log: str,
) -> None:
    """Make all cells that are not there, noting how each ended in ``outcomes``.

    Cells of an earlier line come first, its seeds before the trials of the next.
    """
    queue: list[tuple[int, int, Job]] = []
    asked: set[str] = set()

    def ask() -> None:
        for place, line in enumerate(lines):
            fresh = True
            while fresh:  # what is there may be enough to ask for more
                fresh = False
                for job in line.jobs(outcomes):
                    if job.cell.key in asked:
                        continue
                    asked.add(job.cell.key)
                    kept = _kept(store, job, limit, again=workers > 0)
                    if kept is None:
                        heapq.heappush(queue, (place, len(asked), job))
                    else:
                        outcomes[job.cell.key], fresh = kept, True

    ask()
    if not workers:
        return
    with Watch(sum(line.size for line in lines), len(outcomes), log) as watch:
        pool = Pool(store, workers, limit, watch.on_round)
        try:
            while queue or pool.busy:
                while queue and pool.free:
                    pool.give(heapq.heappop(queue)[2])
                for job, made in pool.wait():
                    outcome = limit.judge(job, made) or made
                    outcomes[job.cell.key] = outcome
                    watch.ended(job, outcome)
                    ask()
        finally:
            pool.close()


def _kept(store: Store, job: Job, limit: Limit, again: bool) -> Outcome | None:
    """How a cell ended before; None if it is to be made (again)."""
    found = store.read(job.cell)
    judged = found and limit.judge(job, found)
    return judged or (None if again else found)
