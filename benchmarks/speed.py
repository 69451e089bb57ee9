"""Speed on each data set: updates a second, the parts of a round, evaluation, many nodes."""

import multiprocessing
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from benchmarks.federation import NEUMF, SCORERS, Run, Settings, run_rounds
from benchmarks.machine import gemm_rate
from fedrecgel.common.data.dataset import Dataset

MULTIPLY_ADDS = 27_000
"""Of one drawn sample in one forward pass, with the first layer's user half once per user."""
PASSES = 3 + 3 + 2
"""Products as large as a forward pass; only the last of three passes needs no weight gradients."""
NEGATIVES = 4
NODES = 16


def measure_set(data: Dataset, rounds: int, loop_fraction: float) -> dict[str, Any]:
    """Everything about one data set but the runs with two processes."""
    result: dict[str, Any] = {
        "users": data.num_users,
        "items": data.num_items,
        "samples_per_user": (1 + NEGATIVES) * len(data.train_items) / data.num_users,
    }
    for scorer, settings in SCORERS.items():
        result[scorer] = _measure_scorer(data, settings, rounds, loop_fraction)
    best = result["neumf"]["block"]["updates_per_s"]
    useful = 2 * MULTIPLY_ADDS * PASSES * result["samples_per_user"] * best
    # The machine's rate varies with its other load: never count a slow moment in our favour.
    rate = max(gemm_rate() for _ in range(3))
    result["gemm_rate"], result["gemm_share"] = rate, useful / rate
    return result


def _measure_scorer(
    data: Dataset, settings: Settings, rounds: int, loop_fraction: float
) -> dict[str, Any]:
    block = run_rounds(data, settings, rounds, evaluate=True)
    loop = run_rounds(data, {**settings, "engine": "loop", "fraction": loop_fraction}, 2)
    many = run_rounds(data, settings, rounds, nodes=min(NODES, data.num_users))
    torch.set_num_threads(2)
    try:
        threads = run_rounds(data, settings, min(3, rounds), now=time.perf_counter)
    finally:
        torch.set_num_threads(1)
    return {
        "block": _figures(block),
        "loop": _figures(loop),
        "two_threads": {"updates_per_s": threads.updates_per_s},
        "nodes_16": _figures(many),
        "evaluation_s": block.evaluation,
        "evaluation_in_rounds": block.evaluation / block.train,
    }


def _figures(run: Run) -> dict[str, Any]:
    return {
        "updates_per_s": run.updates_per_s,
        "round_s": run.seconds,
        "round_wall_s": run.wall,
        "flower_share": run.flower_share,
        "split_s": run.split(),
    }


def measure_nodes(data: Dataset, most: int) -> dict[str, Any]:
    """The same users and the same rounds, hosted by one node, by 16, and by one node each."""
    result = {}
    for nodes in (1, NODES, min(most, data.num_users)):
        run = run_rounds(data, NEUMF, 2, nodes=nodes)
        result[str(nodes)] = {"round_s": run.seconds, "flower_share": run.flower_share}
    return result


def measure_full_ranking(data: Dataset) -> dict[str, float]:
    """Seconds to rank all users' validation items in the whole catalogue, and among candidates."""
    found = {}
    for scorer, settings in SCORERS.items():
        run = run_rounds(data, {**settings, "select_by": "full.ndcg@10"}, 1, evaluate=True)
        found[scorer] = run.evaluation
    return found


def measure_processes(sets: dict[str, Dataset], rounds: int) -> dict[str, float]:
    """Updates a second of two processes that each host half of the users, NeuMF, on the wall."""
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(2), context.Queue()
    paths = {name: str(data.path) for name, data in sets.items()}
    workers = [
        context.Process(target=_half, args=(part, paths, rounds, barrier, queue), daemon=True)
        for part in range(2)
    ]
    for worker in workers:
        worker.start()
    rates: dict[str, float] = dict.fromkeys(sets, 0.0)
    for _ in range(2 * len(sets)):
        name, rate = queue.get(timeout=300)
        rates[name] += rate
    for worker in workers:
        worker.join()
    return rates


def _half(
    part: int,
    paths: dict[str, str],
    rounds: int,
    barrier: Barrier,
    queue: "Queue[tuple[str, float]]",
) -> None:
    torch.set_num_threads(1)
    for name, path in paths.items():
        data = Dataset.load(Path(path))
        barrier.wait(timeout=300)
        run = run_rounds(data, NEUMF, rounds, nodes=2, only=part, now=time.perf_counter)
        queue.put((name, run.updates_per_s))
