"""Speed and memory of whole rounds: ``python -m benchmarks [--quick]`` from the repository.

Prepares data in a temporary folder, measures, prints the table and writes it with machine and
versions to ``benchmarks/out``. A full run takes some five minutes and wants a quiet machine.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded, for the processes too
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import datetime
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import report, scaling, speed
from benchmarks.data import SETS, invent, prepare_sets
from benchmarks.machine import describe, gemm_rate

OUT = Path(__file__).parent / "out"


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    loop_fraction: float
    shrink: int = 1
    """So many times fewer users in the published sets' stead."""
    largest: int = 100_000
    cohort: int = 300
    nodes: int = 100_000
    small: int = 1_000
    memory_rounds: int = 60
    memory_runs: int = 16
    everything: bool = True


FULL = Size(rounds=8, loop_fraction=0.1)
QUICK = Size(rounds=2, loop_fraction=0.02, largest=1_000, cohort=100, nodes=100, everything=False)
TINY = Size(
    rounds=1,
    loop_fraction=0.1,
    shrink=40,
    largest=1_000,
    cohort=20,
    nodes=20,
    small=50,
    memory_rounds=3,
    memory_runs=2,
)


def measure(size: Size, names: list[str], folder: Path) -> dict[str, Any]:
    """All figures, as they are written to ``bench.json``."""
    began = time.perf_counter()
    figures: dict[str, Any] = {"machine": describe(), "gemm_rate": gemm_rate()}
    figures["date"] = datetime.date.today().isoformat()
    say("data")
    sets = prepare_sets(folder, names, size.shrink)
    figures["sets"] = {}
    for name, data in sets.items():
        say(name)
        figures["sets"][name] = speed.measure_set(data, size.rounds, size.loop_fraction)
    say("two processes")
    figures["two_processes"] = speed.measure_processes(sets, size.rounds)
    first, last = min(sets, key=lambda n: sets[n].num_users), _most_pairs(sets)
    say("many nodes")
    figures["nodes_set"] = first = "FilmTrust" if "FilmTrust" in sets else first
    figures["nodes"] = speed.measure_nodes(sets[first], size.nodes)
    if size.everything:
        say("full ranking")
        figures["full_ranking_set"] = last
        figures["full_ranking_s"] = speed.measure_full_ranking(sets[last])
        say("growth")
        figures["growth"] = scaling.measure_growth(folder, size.largest, size.cohort)
        say("memory")
        large = invent(folder, size.largest, min(10_000, size.largest))
        figures["large"] = scaling.measure_large(large, 3)
        small = invent(folder, size.small, 1_000)
        figures["memory"] = scaling.measure_memory(small, size.memory_rounds, size.memory_runs)
    figures["updates_per_s"] = {
        name: {kind: found["neumf"][kind]["updates_per_s"] for kind in ("loop", "block")}
        for name, found in figures["sets"].items()
    }
    figures["gemm_share"] = {name: found["gemm_share"] for name, found in figures["sets"].items()}
    figures["gemm_rate"] = max(
        figures["gemm_rate"], *(found["gemm_rate"] for found in figures["sets"].values())
    )
    figures["gates"] = gates(figures)
    figures["seconds"] = time.perf_counter() - began
    return figures


def gates(figures: dict[str, Any]) -> list[dict[str, Any]]:
    """What NeuMF with both radii was promised to do, and whether it does."""
    found: list[dict[str, Any]] = []

    def add(what: str, wanted: str, value: str, met: bool) -> None:
        found.append({"what": what, "wanted": wanted, "found": value, "met": met})

    for name, wanted in (("FilmTrust", 600), ("Amazon-Video", 1_200)):
        if name in figures["updates_per_s"]:
            rate = figures["updates_per_s"][name]["block"]
            add(f"{name}, updates/s", f"≥ {wanted:,}", f"{rate:,.0f}", rate >= wanted)
    for name, values in figures["sets"].items():
        share = values["neumf"]["nodes_16"]["flower_share"]
        cost = values["neumf"]["evaluation_in_rounds"]
        add(f"{name}, Flower's share, 16 nodes", "< 10 %", f"{share:.1%}", share < 0.1)
        add(f"{name}, evaluation in rounds", "≤ 2", f"{cost:.2f}", cost <= 2)
    if "large" in figures:
        large = figures["large"]
        memory, wall = large["peak_bytes"] / 2**30, large["round_wall_s"]
        what = f"{large['users']:,} users, {large['items']:,} items"
        add(f"{what}, peak memory", "< 3 GiB", f"{memory:.2f} GiB", memory < 3)
        add(f"{what}, a round of 1 %", "< 5 s", f"{wall:.2f} s", wall < 5)
    for kind, start in (("rounds", 10), ("runs", 2)):
        held = figures.get("memory", {}).get(kind, [])
        if len(held) > start:
            ratio = held[-1] / held[start - 1]
            add(
                f"memory after {len(held)} {kind} / {start}", "≤ 1.10", f"{ratio:.3f}", ratio <= 1.1
            )
    return found


def _most_pairs(sets: dict[str, Any]) -> str:
    return max(sets, key=lambda name: sets[name].num_users * sets[name].num_items)


def say(what: str) -> None:
    """Say what is being measured."""
    print(f"measuring: {what} ...", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two data sets, no growth, < 40 s")
    parser.add_argument("--tiny", action="store_true", help="tiny invented data: does it run?")
    parser.add_argument("--data", nargs="+", metavar="NAME", help="known names, files or folders")
    parser.add_argument("--out", type=Path, default=OUT, help="where to write")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    size = TINY if given.tiny else QUICK if given.quick else FULL
    names = given.data or [s.name for s in SETS]
    if not given.data and (given.quick or given.tiny):
        names = ["filmtrust", "amazon-video"]
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(size, names, Path(folder))
    print("\n".join(report.lines(figures)))
    report.write(figures, given.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
