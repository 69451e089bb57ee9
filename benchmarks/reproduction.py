"""Published numbers of the federated rivals, under their protocol and under a clean one.

Trains on MovieLens 100K as the code of PFedRec and its kin does: all users in every round, ties by
the order of the file, the round with the best validation HR@10 reported on test, 99 candidates.
Each model is trained twice: with the published negatives, which are never a user's held-out items
(leaky), and with clean ones. Central EASE on Last.fm shows what repeated rows do. Results go into
``OUT.json`` as they come (run the command again and it goes on), the page into ``--page``::

    python -m benchmarks.reproduction
    python -m benchmarks.reproduction --only pfedrec-leaky local-leaky
"""

import argparse
import csv
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.plain import train_plain
from benchmarks.reproduction_page import page
from fedrecgel import prepare
from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.algorithms.pfedrec import PFedRec
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.algorithms.view import ScoresView
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.files import stored
from fedrecgel.common.data.sources import open_source
from fedrecgel.common.data.synthetic import SyntheticSettings
from fedrecgel.common.evaluation import PersonalView, held_out, rank_among_candidates
from fedrecgel.common.interactions import Interactions
from fedrecgel.common.item_lists import ItemLists, join_lists
from fedrecgel.common.metrics import metric
from fedrecgel.common.presets import PAPER
from fedrecgel.common.state import State, take_users
from fedrecgel.simulation.central.tuned import references
from fedrecgel.simulation.references import PopularityView

Views = Mapping[str, Callable[[], PersonalView]]
Curve = dict[str, list[dict[str, float]]]


@dataclass(frozen=True)
class Trained:
    """An algorithm trained by the published protocol.

    Attributes
    ----------
    alone
        Nothing is sent: every user keeps their own table from round to round.
    seed
        Of the candidates, and of everything random in training.
    """

    algorithm: str
    leaky: bool
    rounds: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    alone: bool = False
    seed: int = 0

    def run(self, work: Path) -> dict[str, Any]:
        """Train, and choose a round for each way of scoring."""
        dataset = movielens(work, self.seed)
        data = interactions(dataset, leaky=self.leaky)
        given = {"fraction": 1.0, "seed": self.seed, **self.settings}
        config = make_config(self.algorithm, given)
        algorithm = make_algorithm(config, dataset.num_items)
        train = train_alone if self.alone else train_together
        began = time.perf_counter()
        curve = train(algorithm, dataset, data, self.rounds)
        return {"settings": dict(self.settings), **_told(self, curve, began)}


@dataclass(frozen=True)
class Plain:
    """PFedRec by `benchmarks.plain`, which shares no code of the training."""

    leaky: bool
    rounds: int = 60
    seed: int = 0

    def run(self, work: Path) -> dict[str, Any]:
        """Train, and choose a round for each way of scoring."""
        dataset = movielens(work, self.seed)
        began, curve = time.perf_counter(), Curve()
        rounds = train_plain(dataset, leaky=self.leaky, rounds=self.rounds, seed=self.seed)
        for number, scores in enumerate(rounds, 1):
            ways = {way: partial(ScoresView, values) for way, values in scores.items()}
            record(curve, ways, dataset, number)
        return _told(self, curve, began)


def _told(of: Trained | Plain, curve: Curve, began: float) -> dict[str, Any]:
    return {
        "leaky": of.leaky,
        "rounds": of.rounds,
        "seconds": round(time.perf_counter() - began),
        "ways": {way: choose(rows) for way, rows in curve.items()},
        "curve": curve,
    }


@dataclass(frozen=True)
class Central:
    """A central method on Last.fm, the tag assignments that papers call Lastfm-2K.

    Attributes
    ----------
    rows
        ``repeated``: every tag is an interaction, as published; ``single``: one row per pair.
    """

    method: str
    rows: str

    def run(self, work: Path) -> dict[str, Any]:
        """Prepare by protocol paper, and measure the tuned method and popularity."""
        dataset = lastfm(work, self.rows)
        (reference,), _ = references(dataset, [self.method])
        known = np.zeros(dataset.num_users, dtype=bool)
        for user, item in enumerate(dataset.test_items):
            known[user] = item in dataset.train_of(user)
        view = PopularityView.of(dataset)
        return {
            "users": dataset.num_users,
            "test_item_in_train": float(known.mean()),
            "ways": {
                self.method: _values(reference.ranks["sampled"]),
                "popularity": measure(view, dataset, "test"),
            },
        }


@dataclass(frozen=True)
class Popularity:
    """Popularity on the candidates of ML-100K, drawn by this seed."""

    seed: int = 0

    def run(self, work: Path) -> dict[str, Any]:
        """Measure it."""
        dataset = movielens(work, self.seed)
        return {"ways": {"popularity": measure(PopularityView.of(dataset), dataset, "test")}}


FEDRAP = {"schedule": "none"}
DISTANCE = {"similarity": "distance"}
EXPERIMENTS: dict[str, Trained | Plain | Central | Popularity] = {
    "pfedrec-leaky": Trained("pfedrec", True, 60),
    "pfedrec-clean": Trained("pfedrec", False, 60),
    "local-leaky": Trained("pfedrec", True, 50, alone=True),
    "local-clean": Trained("pfedrec", False, 50, alone=True),
    "fedmf-leaky": Trained("fedmf", True, 60),
    "fedmf-clean": Trained("fedmf", False, 60),
    "popularity": Popularity(),
    "lastfm-repeated-ease": Central("ease", "repeated"),
    "lastfm-single-ease": Central("ease", "single"),
    "fedrap-leaky": Trained("fedrap", True, 20, FEDRAP),
    "fedrap-clean": Trained("fedrap", False, 20, FEDRAP),
    "fedncf-leaky": Trained("fedncf", True, 60, PAPER["fedncf"]),
    "fedncf-clean": Trained("fedncf", False, 60, PAPER["fedncf"]),
    "gpfedrec-leaky": Trained("gpfedrec", True, 60),
    "gpfedrec-clean": Trained("gpfedrec", False, 60),
    "gpfedrec-distance-leaky": Trained("gpfedrec", True, 60, DISTANCE),
    "cofedrec-leaky": Trained("cofedrec", True, 20),
    "cofedrec-clean": Trained("cofedrec", False, 20),
    **{f"pfedrec-clean-{seed}": Trained("pfedrec", False, 60, seed=seed) for seed in (1, 2)},
    **{f"popularity-{seed}": Popularity(seed) for seed in (1, 2)},
    "plain-leaky": Plain(True),
    "plain-clean": Plain(False),
    **{f"plain-clean-{seed}": Plain(False, seed=seed) for seed in (1, 2)},
}


# --- data ----------------------------------------------------------------------------------------


@cache
def movielens(work: Path, seed: int = 0) -> Dataset:
    """MovieLens 100K as PFedRec and its kin prepare it; the seed draws the candidates."""
    folder = work / (f"ml-100k-{seed}" if seed else "ml-100k")
    if folder.exists():
        return Dataset.load(folder)
    return prepare("ml-100k", folder, ties="file", seed=seed)


def lastfm(work: Path, rows: str) -> Dataset:
    """Last.fm by protocol paper, with all its rows or with the last of every (user, artist)."""
    folder = work / f"lastfm-2k-{rows}"
    if folder.exists():
        return Dataset.load(folder)
    if rows == "repeated":
        return prepare("lastfm-2k", folder, protocol="paper")
    with stored("lastfm-2k") as path:
        raw = open_source(path, {}, None, False, SyntheticSettings(), 0).interactions
    latest: dict[tuple[int, int], int] = {}
    for user, item, moment in zip(raw.events.user, raw.events.item, raw.events.time, strict=True):
        pair = (int(user), int(item))
        latest[pair] = max(int(moment), latest.get(pair, 0))
    file = work / "lastfm-2k-single.csv"
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(("user", "item", "time"))
        for (user, item), moment in latest.items():
            writer.writerow((raw.user_ids[user], raw.item_ids[item], moment))
    return prepare(file, folder, protocol="paper")


def interactions(dataset: Dataset, *, leaky: bool) -> Interactions:
    """Training interactions of all users; ``leaky`` keeps held-out items out of the negatives."""
    data = Interactions(
        dataset.train_items,
        np.asarray(dataset.train_offsets),
        dataset.user_keys,
        dataset.num_items,
    )
    if not leaky:
        return data
    barred = join_lists(*(ItemLists(*dataset.held_out(s)) for s in ("validation", "test")))
    return replace(data, barred=(barred.items, np.asarray(barred.offsets, np.int64)))


# --- training ------------------------------------------------------------------------------------


def train_together(
    algorithm: Algorithm[Any], dataset: Dataset, data: Interactions, rounds: int
) -> Curve:
    """All users in every round; what `fedrecgel simulate` does with one node and fraction 1."""
    server, private = algorithm.init_server(), algorithm.init_private(data.keys)
    everyone, curve = torch.arange(data.num_users), Curve()
    for number in range(1, rounds + 1):
        download = algorithm.download(server, everyone)
        before = {name: value.clone() for name, value in server.shared.items()}
        updates, private = algorithm.update_users(download, private, data, number)
        whose = [-1] if algorithm.reduce == "sum" else range(data.num_users)
        algorithm.aggregate(server, dict(zip(whose, updates, strict=True)), number)
        given = algorithm.evaluation_download(server, everyone)
        record(curve, ways_of(algorithm, given, before, private), dataset, number)
    return curve


def ways_of(algorithm: Algorithm[Any], now: Download, before: State, private: State) -> Views:
    """Ways to score the same trained model; ``before``: the table of the last download."""
    ways: dict[str, Callable[[], PersonalView]] = {}
    ways["own"] = partial(algorithm.personal_view, now, private)
    if isinstance(algorithm, PFedRec):
        shared = {name: private[name] for name in ("weight", "bias")}
        ways["global"] = partial(algorithm.personal_view, now, shared)
        ways["own, last download"] = partial(algorithm.personal_view, Download(before), private)
    return ways


@torch.no_grad()
def train_alone(
    algorithm: Algorithm[Any], dataset: Dataset, data: Interactions, rounds: int
) -> Curve:
    """PFedRec with the network off: every user tunes a table of their own, round after round."""
    assert isinstance(algorithm, PFedRec)
    private = algorithm.init_private(data.keys)
    first = algorithm.init_server().shared["items"]
    tables = first.repeat(data.num_users, 1, 1)
    curve = Curve()
    for number in range(1, rounds + 1):
        minibatches = algorithm.config.minibatches(data, number)
        for group in minibatches.groups(0, algorithm.dtype, torch.device("cpu")):
            users = torch.from_numpy(group.users)[:, None]
            rows = tables[users, group.items]
            own = take_users(private, torch.from_numpy(group.users))
            tuned = algorithm.tune(group, rows, own, data, number)
            for name, value in tuned.own.items():
                private[name][group.users] = value
            user, place = group.valid.nonzero(as_tuple=True)
            tables[users[user, 0], group.items[user, place]] = rows[user, place]
        weight, bias = (private[name].unsqueeze(-1) for name in ("weight", "bias"))
        scores = torch.baddbmm(bias, tables, weight).squeeze(-1)
        record(curve, {"own": partial(ScoresView, scores)}, dataset, number)
    return curve


def record(curve: Curve, ways: Views, dataset: Dataset, number: int) -> None:
    """Add both splits' metrics of a round to the curve."""
    for way, view in ways.items():
        made = view()
        validation, test = (measure(made, dataset, split) for split in ("validation", "test"))
        row = {"round": float(number), "validation hr@10": validation["hr@10"], **test}
        curve.setdefault(way, []).append(row)
    print(number, {way: rows[-1] for way, rows in curve.items()}, flush=True)


def measure(view: PersonalView, dataset: Dataset, split: str) -> dict[str, float]:
    """HR@10 and NDCG@10 among the candidates, in percent."""
    held = held_out(dataset, split)
    return _values(rank_among_candidates(view, held.positives, held.candidates))


def _values(counts: Any) -> dict[str, float]:  # noqa: ANN401 - RankCounts
    return {
        name: round(100 * float(metric(name, counts).mean()), 2) for name in ("hr@10", "ndcg@10")
    }


def choose(rows: list[dict[str, float]]) -> dict[str, float]:
    """The round with the highest validation HR@10, of equal ones the last, and the last round."""
    best = max(rows, key=lambda row: (row["validation hr@10"], row["round"]))
    last = {f"last {name}": rows[-1][name] for name in ("hr@10", "ndcg@10")}
    return {**best, **last}


def main() -> None:
    """Run what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, default=Path("runs/reproduction"), help="data sets")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/out/reproduction"))
    parser.add_argument("--page", type=Path, default=Path("docs/reproduction.md"))
    parser.add_argument("--only", nargs="*", choices=list(EXPERIMENTS), metavar="NAME")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    file = arguments.out.with_suffix(".json")
    found: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    for name in arguments.only or EXPERIMENTS:
        if name not in found:
            print(f"=== {name}", flush=True)
            found[name] = EXPERIMENTS[name].run(arguments.work)
            # Another process may have added its own in the meantime.
            found = {**(json.loads(file.read_text()) if file.exists() else {}), name: found[name]}
            file.write_text(json.dumps(found) + "\n")
    arguments.page.write_text(page(found), encoding="utf-8")


if __name__ == "__main__":
    main()
