"""The paper's own settings, run as published: FedRecGEL, FedNCF (both radii 0) and popularity.

Prepares data by the paper's protocol, trains both algorithms at its settings (presets paper and
one-step), and prints HR@10 and NDCG@10 (99 candidates, last round) beside popularity on the same
candidates, with the paired difference of the two algorithms over all users and seeds::

    python -m benchmarks.paper
    python -m benchmarks.paper --data filmtrust:5 amazon-video:1 --work runs/paper
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import write_page
from fedrecgel import prepare, simulate
from fedrecgel.client.store import load_ranks
from fedrecgel.common.metrics import RankCounts, metric

METRICS = ("hr@10", "ndcg@10")
ALGORITHMS = {"fedrecgel": "paper", "fedncf": "one-step"}
"""Each with its preset: FedRecGEL's authors compare with FedNCF of one step."""
COLUMNS = (
    "data",
    "users",
    "seeds",
    "metric",
    "popularity",
    "FedRecGEL",
    "FedNCF",
    "difference",
    "users changed",
    "best round by TEST (the paper's way)",
)


def main() -> None:
    """Run everything that is not there yet, print the table and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/paper"), help="data and runs")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/out/paper"), help="writes OUT.md and OUT.json"
    )
    parser.add_argument(
        "--data", nargs="*", default=["filmtrust:5", "amazon-video:1"], metavar="NAME:SEEDS"
    )
    arguments = parser.parse_args()
    entries = (entry.partition(":") for entry in arguments.data)
    rows = [row_of(name, int(seeds or 1), arguments.work) for name, _, seeds in entries]
    write_page(arguments.out, table(rows), rows)


def row_of(name: str, seeds: int, work: Path) -> dict[str, Any]:
    """Train both algorithms with every seed on one data set."""
    data = work / f"{name}-data"
    if not (data / "manifest.json").exists():
        prepare(name, data, protocol="paper")
    ranks: dict[str, list[RankCounts]] = {algorithm: [] for algorithm in ALGORITHMS}
    results: dict[str, list[dict[str, Any]]] = {algorithm: [] for algorithm in ALGORITHMS}
    for seed in range(seeds):
        for algorithm in ALGORITHMS:
            run = work / f"{name}-{algorithm}-{seed}"
            if not (run / "result.json").exists():
                simulate(
                    data,
                    run,
                    algorithm=algorithm,
                    preset=ALGORITHMS[algorithm],
                    seed=seed,
                    evaluate_every=10,
                    overwrite=True,
                    log="none",
                )
            results[algorithm].append(json.loads((run / "result.json").read_text()))
            found = load_ranks(run / "private")
            ranks[algorithm].append(RankCounts(found[:, 0], found[:, 1]))
            shown = {m: round(_value(results[algorithm][-1]["test"], m), 4) for m in METRICS}
            print(f"{name} {algorithm} seed {seed}: {shown}", flush=True)
    first = results["fedrecgel"][0]
    row: dict[str, Any] = {
        "data": first["data"],
        "users": first["users"]["evaluated"],
        "seeds": seeds,
        "versions": first["versions"],
        "overlap": first["overlap"],
    }
    for m in METRICS:
        row[f"popularity {m}"] = _value(first["popularity"], m)
        for algorithm in ALGORITHMS:
            values = [_value(result["test"], m) for result in results[algorithm]]
            spread = statistics.stdev(values) if len(values) > 1 else None
            row[f"{algorithm} {m}"] = {"mean": statistics.fmean(values), "spread": spread}
        # Users are the unit of the standard error, so a user's seeds are averaged first.
        pairs = zip(ranks["fedrecgel"], ranks["fedncf"], strict=True)
        each = np.stack([metric(m, a) - metric(m, b) for a, b in pairs])
        user = each.mean(0)
        row[f"difference {m}"] = {
            "mean": float(user.mean()),
            "se": float(user.std(ddof=1) / len(user) ** 0.5),
            "changed": float((each != 0).mean()),
        }
        best = [_value(result["best_by_test"]["test"], m) for result in results["fedrecgel"]]
        row[f"best by test {m}"] = statistics.fmean(best)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "Test items among 99 candidates, %, last of 100 rounds; ± is the spread over seeds.",
        "The difference is FedRecGEL minus FedNCF, paired user by user, ± standard error over",
        "users.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        for m in METRICS:
            difference = row[f"difference {m}"]
            cells = [
                row["data"]["name"],
                f"{row['users']:,}",
                str(row["seeds"]),
                m.upper(),
                f"{100 * row[f'popularity {m}']:.1f}",
                *(_spread(row[f"{algorithm} {m}"]) for algorithm in ALGORITHMS),
                f"{100 * difference['mean']:+.2f} ± {100 * difference['se']:.2f}",
                f"{100 * difference['changed']:.1f} %",
                f"{100 * row[f'best by test {m}']:.1f}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    versions = ", ".join(f"{name} {value}" for name, value in rows[0]["versions"].items())
    hashes = ", ".join(f"{row['data']['name']} {row['data']['hash'][:12]}" for row in rows)
    lines += [
        "",
        f"Protocol paper, presets paper (radii 0.02) and one-step. {versions}. Data: {hashes}.",
        "",
    ]
    return "\n".join(lines)


def _value(metrics: dict[str, Any], name: str) -> float:
    return float(metrics["sampled"][name]["value"])


def _spread(value: dict[str, Any]) -> str:
    spread = "" if value["spread"] is None else f" ± {100 * value['spread']:.1f}"
    return f"{100 * value['mean']:.1f}{spread}"


if __name__ == "__main__":
    main()
