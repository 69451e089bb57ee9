"""Search for good settings of a data set, on its validation items only.

Coordinate search: from the start (the preset ``tuned``, changed by ``--start``), one setting after
the other is moved one step up or down its ladder below, and the move is kept if the score rises;
after a gain the same direction is tried again. It ends when no step helps or ``--runs`` trials are
in the CSV. The score of a trial is the highest mean, over three evaluations in a row, of
``sqrt(sampled ndcg@10 * full ndcg@10)``: three, since one evaluation is noisy and the highest of
forty would reward noise. Test items are not looked at: of a run folder only the validation lines of
``metrics.jsonl`` are read, and the folder is deleted.

Each trial becomes a row of the CSV, which is also the cache: run the command again and it goes on.

    python -m benchmarks.tune --data data/ml-100k --csv benchmarks/out/tuning-ml-100k.csv --runs 20
    python -m benchmarks.tune --data data/ml-100k --csv radii.csv --only rho-shared rho-private
    python -m benchmarks.tune --data data/ml-100k --csv one.csv --grid server-lr=0.05,0.1,0.2
"""

import argparse
import csv
import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedrecgel.common.algorithms.fedrecgel import FedRecGELConfig
from fedrecgel.common.config import Scalar
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, FedRecError
from fedrecgel.common.presets import preset_config
from fedrecgel.simulation.run import simulate

LADDERS: Mapping[str, Sequence[Scalar]] = {
    "server-optimizer": ("adam", "adagrad"),
    "server-lr": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8),
    "item-weight-decay": (0.0, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3),
    "private-weight-decay": (0.0, 1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 3e-2),
    "num-negatives": (2, 4, 8, 16, 32),
    "embedding-dim": (16, 32, 64, 128, 256),
    "private-steps": (1, 2, 5, 10, 20),
    "local-lr": (0.01, 0.02, 0.05, 0.1, 0.2),
    "init-std": (0.01, 0.03, 0.1, 0.3),
    "loss": ("mean", "chunked-sum"),
    "rho-shared": (0.0, 0.02, 0.1, 0.5, 1.0, 2.0),
    "rho-private": (0.0, 0.02, 0.1, 0.5, 1.0),
}
"""What may be tried, and in which order the settings take their turns."""

METRICS = ("sampled.hr@10", "sampled.ndcg@10", "full.hr@10", "full.ndcg@10")
MEASURED = ("round", *METRICS, "score", "seconds")
WINDOW = 3

Settings = dict[str, Scalar]


class Trials:
    """Trials of one data set: looked up in the CSV, else run and appended to it."""

    def __init__(self, data: Path, path: Path, budget: int, seed: int) -> None:
        self.data = data
        self.path = path
        self.budget = budget
        self.seed = seed
        self.scores: dict[tuple[str, ...], float] = {}
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                for row in csv.DictReader(file):
                    key = tuple(row[name] for name in ("seed", "rounds", *LADDERS))
                    self.scores[key] = float(row["score"])

    @property
    def left(self) -> int:
        """How many more trials may be run."""
        return self.budget - len(self.scores)

    def score(self, settings: Settings) -> float:
        """Validation score of these settings; minus infinity when the budget is spent."""
        config = preset_config("fedrecgel", "tuned", Dataset.load(self.data).name, settings)
        flat = config.replace(seed=self.seed).to_flat()
        own = {name: flat[name] for name in ("seed", "rounds", *LADDERS)}
        key = tuple(map(str, own.values()))
        if key not in self.scores:
            if self.left <= 0:
                return -math.inf
            measured = measure(self.data, flat)
            self._append({**own, **measured})
            self.scores[key] = float(measured["score"])
        return self.scores[key]

    def _append(self, row: Mapping[str, Any]) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = not self.path.exists()
        with self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)
        print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)


def measure(data: Path, flat: Mapping[str, Scalar]) -> dict[str, float]:
    """Run once and read the validation metrics."""
    begin = time.perf_counter()
    arguments: dict[str, Any] = {name.replace("-", "_"): value for name, value in flat.items()}
    with tempfile.TemporaryDirectory() as folder:
        simulate(data, Path(folder) / "run", log="none", **arguments)
        text = (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    best = summary([(line["round"], line["validation"]) for line in lines if "validation" in line])
    return {**best, "seconds": round(time.perf_counter() - begin, 1)}


def summary(history: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, float]:
    """Best window of evaluations: its middle round, mean metrics and score."""
    rows = [
        [metrics[ranking][name]["value"] for ranking, name in (m.split(".") for m in METRICS)]
        for _, metrics in history
    ]
    each = [math.sqrt(row[1] * row[3]) for row in rows]
    size = min(WINDOW, len(rows))
    score, first = max((sum(each[i : i + size]) / size, -i) for i in range(len(rows) - size + 1))
    inside = rows[-first : size - first]
    means = [sum(column) / size for column in zip(*inside, strict=True)]
    found = {name: round(value, 5) for name, value in zip(METRICS, means, strict=True)}
    return {"round": history[size // 2 - first][0], **found, "score": round(score, 5)}


def search(trials: Trials, start: Settings, names: Sequence[str]) -> tuple[Settings, float]:
    """Coordinate search until no step helps or the budget is spent."""
    best, score = dict(start), trials.score(start)
    improved = True
    while improved and trials.left > 0:
        improved = False
        for name in names:
            for direction in (1, -1):
                gained = False
                for value in _ladder(name, best[name], direction):
                    tried = trials.score({**best, name: value})
                    if tried <= score:
                        break
                    best, score, gained = {**best, name: value}, tried, True
                improved |= gained
                if gained:
                    break
    return best, score


def _ladder(name: str, value: Scalar, direction: int) -> Iterator[Scalar]:
    """Values after ``value`` on its ladder, nearest first; it need not be one of its steps."""
    steps = LADDERS[name]
    if isinstance(value, str):
        yield from (step for step in steps if step != value)
        return
    for step in sorted(steps, reverse=direction < 0):
        if (float(step) - value) * direction > 0:
            yield step


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    if wrong := [text for text in texts if "=" not in text]:
        raise ConfigError(f"'{wrong[0]}' is not of the form NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def main() -> None:
    """Parse the arguments and search."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="made by: fedrecgel prepare")
    parser.add_argument("--csv", type=Path, required=True, help="every trial; also the cache")
    parser.add_argument("--runs", type=int, default=20, help="trials in the CSV, at most")
    parser.add_argument("--seed", type=int, default=100, help="not one that is reported later")
    parser.add_argument("--start", nargs="*", default=[], metavar="NAME=VALUE")
    parser.add_argument("--only", nargs="*", choices=list(LADDERS), help="settings to move")
    parser.add_argument(
        "--grid", metavar="NAME=V,V,...", help="only measure these values of one setting"
    )
    try:
        tune(parser.parse_args())
    except FedRecError as error:
        parser.error(str(error))


def tune(arguments: argparse.Namespace) -> None:
    """Measure the grid, or search; print the result."""
    torch.set_num_threads(1)
    trials = Trials(arguments.data, arguments.csv, arguments.runs, arguments.seed)
    name = Dataset.load(arguments.data).name
    config = preset_config("fedrecgel", "tuned", name, _pairs(arguments.start))
    assert isinstance(config, FedRecGELConfig)
    start = config.to_flat()
    if arguments.grid:
        (setting, values), *_ = _pairs([arguments.grid]).items()
        for value in values.split(","):
            print(f"{setting}={value} score {trials.score({**start, setting: value}):.5f}")
        return
    best, score = search(trials, start, arguments.only or list(LADDERS))
    print(f"best score {score:.5f}: " + " ".join(f"{n}={best[n]}" for n in LADDERS))


if __name__ == "__main__":
    main()
