"""How the cost of a round grows, and what memory it takes, on invented data."""

import multiprocessing
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from benchmarks.data import invent
from benchmarks.federation import NEUMF, run_rounds
from benchmarks.machine import peak, resident
from fedrecgel import simulate
from fedrecgel.common.data.dataset import Dataset

T = TypeVar("T")
Row = dict[str, float]
SWEEP = [(rho, seed) for seed in range(2) for rho in (0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1)]


def measure_growth(folder: Path, largest: int, cohort: int) -> dict[str, list[Row]]:
    """Seconds of a round by size of the cohort, of the catalogue, and of the population.

    ``largest`` is the largest number of users and of items; ``cohort`` users train in each round
    where the cohort is not what grows.
    """
    tens = [10**power for power in range(3, 6) if 10**power <= largest]
    most = invent(folder, tens[-1], min(10_000, largest))
    cohorts = [c for c in (100, 300, 1_000, 3_000, 10_000) if c <= most.num_users // 5]
    return {
        "cohort": [_row(c, most, c) for c in cohorts],
        "items": [
            _row(items, invent(folder, min(3_000, largest), items), cohort) for items in tens
        ],
        "users": [
            _row(users, invent(folder, users, min(10_000, largest)), cohort) for users in tens
        ],
    }


def _row(size: int, data: Dataset, cohort: int) -> Row:
    rounds = 3 if cohort <= 1_000 else 1
    run = run_rounds(data, {**NEUMF, "fraction": min(1.0, cohort / data.num_users)}, rounds)
    samples = 5 * len(data.train_items) / data.num_users
    return {
        "size": size,
        "round_s": run.seconds,
        "round_wall_s": run.wall,
        "train_s": run.train,
        "updates_per_s": run.updates_per_s,
        "samples_per_user": samples,
    }


def measure_large(data: Dataset, rounds: int) -> dict[str, float]:
    """Peak memory and seconds of rounds with 1 % of the users, and of an evaluation of all."""
    return apart(_large, str(data.path), rounds)


def _large(path: str, rounds: int) -> dict[str, float]:
    data = Dataset.load(path)
    after: list[int] = []
    run = run_rounds(
        data,
        {**NEUMF, "fraction": 0.01},
        rounds,
        evaluate=True,
        after_round=lambda number: after.append(peak()),
    )
    return {
        "users": data.num_users,
        "items": data.num_items,
        "round_s": run.seconds,
        "round_wall_s": run.wall,
        "evaluation_s": run.evaluation,
        "peak_training_bytes": after[-2],
        "peak_bytes": peak(),
    }


def measure_memory(data: Dataset, rounds: int, runs: int) -> dict[str, list[int]]:
    """Bytes held after each of many rounds, and after each of up to 16 runs in one process."""
    return {
        "rounds": apart(_after_rounds, str(data.path), rounds),
        "runs": apart(_after_runs, str(data.path), runs),
    }


def _after_rounds(path: str, rounds: int) -> list[int]:
    held: list[int] = []
    run_rounds(Dataset.load(path), NEUMF, rounds, after_round=lambda _: held.append(resident()))
    return held


def _after_runs(path: str, runs: int) -> list[int]:
    held = []
    with tempfile.TemporaryDirectory() as folder:
        for number, (rho, seed) in enumerate(SWEEP[:runs]):
            settings = {**NEUMF, "rho_shared": rho, "rho_private": rho, "seed": seed, "rounds": 3}
            simulate(path, f"{folder}/{number}", preset="paper", log="none", **settings)
            held.append(resident())
    return held


def apart(work: Callable[..., T], *args: object) -> T:
    """The result of ``work`` in a process of its own, with one thread."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        return pool.apply_async(work, args).get(timeout=900)
