"""The tuned rows and the central references: the runs behind the README's first table.

Trains FedRecGEL with preset tuned (`fedrecgel simulate --data DIR --out RUN --seed S`) on prepared
data sets, tunes the references on the same split, and prints the test metrics of both, with the
ratio of full NDCG@10 to EASE's and to the best central factor model's (of ALS, MF and NeuMF). Runs
that are in ``--work`` are read, not repeated::

    python -m benchmarks.tuned --data data/ml-100k,data/filmtrust
"""

import argparse
import json
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe
from benchmarks.report import write_page
from fedrecgel import Dataset, simulate
from fedrecgel.simulation.central.tuned import references
from fedrecgel.simulation.references import values
from fedrecgel.simulation.result import Result

METRICS = ("sampled.hr@10", "sampled.ndcg@10", "full.hr@10", "full.ndcg@10")
FACTORS = ("als", "mf", "neumf")
REFERENCES = ("popularity", "ease", *FACTORS)
HEADS = ("data", "", "sampled HR@10", "sampled NDCG@10", "full HR@10", "full NDCG@10")


def main() -> None:
    """Run everything that is not there yet, print the tables and write them."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", required=True, metavar="DIR[,DIR...]", help="prepared data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("runs/tuned"), help="run folders")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/out/tuned"), help="writes OUT.md and OUT.json"
    )
    arguments = parser.parse_args()
    machine = describe() | {"threads": torch.get_num_threads()}
    figures: dict[str, Any] = {"machine": machine, "sets": []}
    for folder in arguments.data.split(","):
        figures["sets"].append(measure(Dataset.load(folder), arguments.seeds, arguments.work))
    write_page(arguments.out, page(figures), figures)


def measure(data: Dataset, seeds: int, work: Path) -> dict[str, Any]:
    """Every seed and every reference on one data set."""
    found, _ = references(data, REFERENCES, tell=lambda line: print(data.name, line, flush=True))
    central = {
        one.name: {"params": dict(one.params), "test": _flat(values(one.ranks))} for one in found
    }
    runs = [_run(data, seed, work / f"{data.name}-{seed}") for seed in range(seeds)]
    mean = {m: statistics.fmean(run["test"][m] for run in runs) for m in METRICS}
    best = max(FACTORS, key=lambda name: central[name]["test"]["full.ndcg@10"])
    return {
        "data": data.name,
        "hash": data.hash,
        "users": data.num_users,
        "items": data.num_items,
        "runs": runs,
        "references": central,
        "mean": mean,
        "spread": {
            m: statistics.stdev(run["test"][m] for run in runs) if seeds > 1 else None
            for m in METRICS
        },
        "best_factor_model": best,
        "ratio_full_ndcg@10": {
            name: mean["full.ndcg@10"] / central[name]["test"]["full.ndcg@10"]
            for name in ("ease", best)
        },
    }


def _run(data: Dataset, seed: int, folder: Path) -> dict[str, Any]:
    assert data.path is not None
    if (folder / "result.json").exists():
        result = Result.open(folder)
        if result.values["data"]["hash"] != data.hash:
            raise SystemExit(f"{folder} is a run on other data: give another --work")
    else:
        result = simulate(data.path, folder, seed=seed, overwrite=True, log="none")
    told = result.values
    run = {
        "seed": seed,
        "chosen_round": result.round,
        "test": _flat(told["test"]),
        "validation": _flat(_validation(folder, result.round)),
        "settings": told["settings"],
        "versions": told["versions"],
    }
    print(f"{data.name} seed {seed}, round {result.round}: {run['test']}", flush=True)
    return run


def page(figures: dict[str, Any]) -> str:
    """The figures as Markdown."""
    lines = [
        "Test items, %: FedRecGEL with preset tuned, mean ± standard deviation over seeds, round",
        "chosen on validation; references tuned on validation (they see all data in one place).",
        "",
        "| " + " | ".join(HEADS) + " | rounds chosen |",
        "| --- | --- |" + " ---: |" * len(METRICS) + " --- |",
    ]
    for one in figures["sets"]:
        rounds = ", ".join(str(run["chosen_round"]) for run in one["runs"])
        cells = [_spread(one["mean"][m], one["spread"][m]) for m in METRICS]
        lines.append(f"| {one['data']} | FedRecGEL | {' | '.join(cells)} | {rounds} |")
        for name, found in one["references"].items():
            cells = [f"{100 * found['test'][m]:.1f}" for m in METRICS]
            lines.append(f"| | {name}{_params(found['params'])} | {' | '.join(cells)} | |")
        cells = [
            f"{100 * statistics.fmean(run['validation'][m] for run in one['runs']):.1f}"
            for m in METRICS
        ]
        lines.append(f"| | FedRecGEL, validation | {' | '.join(cells)} | |")
    lines += [
        "",
        "Full NDCG@10 as a share of a reference's, from unrounded values:",
        "",
        "| data | EASE | best central factor model |",
        "| --- | ---: | ---: |",
    ]
    for one in figures["sets"]:
        ratio, best = one["ratio_full_ndcg@10"], one["best_factor_model"]
        cells = [f"{100 * ratio['ease']:.1f} %", f"{100 * ratio[best]:.1f} % ({best})"]
        lines.append(f"| {one['data']} | {' | '.join(cells)} |")
    versions = figures["sets"][0]["runs"][0]["versions"]
    hashes = ", ".join(f"{one['data']} {one['hash'][:12]}" for one in figures["sets"])
    machine = figures["machine"]
    lines += [
        "",
        f"{', '.join(f'{name} {value}' for name, value in versions.items())}; "
        f"{machine['cores']} cores, {machine['threads']} thread(s).",
        f"Data: {hashes}.",
        "",
    ]
    return "\n".join(lines)


def _validation(folder: Path, chosen: int) -> dict[str, Any]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return next(dict(line["validation"]) for line in lines if line["round"] == chosen)


def _flat(told: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    split = {m: m.partition(".") for m in METRICS}
    return {m: float(told[ranking][name]["value"]) for m, (ranking, _, name) in split.items()}


def _params(params: dict[str, float]) -> str:
    return (
        f" ({', '.join(f'{name} {value:g}' for name, value in params.items())})" if params else ""
    )


def _spread(mean: float, spread: float | None) -> str:
    return f"{100 * mean:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


if __name__ == "__main__":
    main()
