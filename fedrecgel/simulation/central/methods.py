"""The central methods: what each learns, and the grid it is tuned over on validation."""

import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
import torch

from fedrecgel.common.errors import DataError
from fedrecgel.common.evaluation import PersonalView
from fedrecgel.simulation.central.ease import ease
from fedrecgel.simulation.central.factors import EPOCHS_MF, EPOCHS_NEUMF, mf, neumf
from fedrecgel.simulation.central.local import local_only
from fedrecgel.simulation.central.training import Training
from fedrecgel.simulation.central.views import FactorView, NeighbourView, RecentView
from fedrecgel.simulation.references import PopularityView

__all__ = ["METHODS", "Method", "als", "ease", "item_knn", "popularity", "recent"]

MOST_NEIGHBOURS = 200
"""Of which a row of the grid uses the first."""

Params = Mapping[str, float]
Fit = Callable[[Training, Params, str], PersonalView]


@dataclass(frozen=True)
class Method:
    """A reference: how it is fitted, and what is tried."""

    name: str
    about: str
    fit: Fit
    grid: tuple[Params, ...]
    """In the order of trial; the first is taken where there is no validation item."""
    version: str = "1"
    """Changes with every change that may move a number, so that old results are not used."""
    quick: bool = True
    """Whether it is among those that are measured when none is named: seconds, not minutes."""


def _grid(**values: tuple[float, ...]) -> tuple[Params, ...]:
    return tuple(dict(zip(values, row, strict=True)) for row in product(*values.values()))


def popularity(training: Training, params: Params, split: str) -> PersonalView:
    """Train interactions of each item."""
    return PopularityView.of(training.dataset)


def recent(training: Training, params: Params, split: str) -> PersonalView:
    """Train interactions in the time before each user's held-out event (`RecentView`).

    ``window`` is a share of the time that the train interactions span.
    """
    data = training.dataset
    rows = _timed_rows(training)
    train = rows[rows["part"] == "train"].sort_values("time", kind="stable")
    times, items = train["time"].to_numpy(np.int64), train["item"].to_numpy(np.int64)
    held = rows[rows["part"] == split].groupby("user")["time"].min()
    now = np.zeros(data.num_users, dtype=np.int64)
    now[held.index.to_numpy(np.int64)] = held.to_numpy(np.int64)
    window = params["window"] * float(times[-1] - times[0])
    first = np.searchsorted(times, np.floor(now - window), side="left")
    return RecentView(items, first, np.searchsorted(times, now, side="left"), data.num_items)


def _timed_rows(training: Training) -> pd.DataFrame:
    path = training.dataset.path
    if path is None or not (path / "interactions.parquet").is_file():
        raise DataError(f"{training.dataset.name} has no interactions.parquet to read times from")
    rows = pd.read_parquet(path / "interactions.parquet")
    if "time" not in rows or rows["time"].isna().any():
        raise DataError(f"{training.dataset.name} has no times, or not for all interactions")
    return rows


def item_knn(training: Training, params: Params, split: str) -> PersonalView:
    """Every item a user knows votes for its most similar items (Deshpande and Karypis, 2004).

    Cosine similarity, damped: ``together / (sqrt(count_i * count_j) + shrink)``, of which each item
    keeps its ``neighbours`` largest.
    """
    shrink = float(params["shrink"])
    if shrink not in training.neighbours:
        training.neighbours[shrink] = _nearest(training, shrink)
    nearest, votes = training.neighbours[shrink]
    keep = int(params["neighbours"])
    return NeighbourView(training.histories, nearest[:, :keep], votes[:, :keep])


def _nearest(training: Training, shrink: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(M, K) most similar items of each item, best first, and how similar they are."""
    root = torch.from_numpy(np.sqrt(training.counts)).to(torch.float32)
    nearest, votes = [], []
    for rows, together in training.together():
        block = together / (root[rows, None] * root + shrink).clamp(min=1e-9)
        block[torch.arange(len(rows)), rows] = 0.0
        best = block.topk(min(MOST_NEIGHBOURS, training.num_items), dim=1)
        nearest.append(best.indices)
        votes.append(best.values)
    return torch.cat(nearest), torch.cat(votes)


def als(training: Training, params: Params, split: str) -> PersonalView:
    """Matrix factorisation of implicit feedback (Hu, Koren, Volinsky, ICDM 2008), of `implicit`."""
    if importlib.util.find_spec("implicit") is None:
        raise DataError("als needs the library implicit: pip install 'fedrecgel[references]'")
    from implicit.als import AlternatingLeastSquares
    from scipy.sparse import csr_matrix
    from threadpoolctl import threadpool_limits

    pairs = training.histories
    shape = (training.num_users, training.num_items)
    ones = np.ones(len(pairs.items), dtype=np.float32)
    with threadpool_limits(1, "blas"):  # its own threads work on rows; BLAS threads slow it down
        model = AlternatingLeastSquares(
            factors=int(params["factors"]),
            regularization=float(params["regularization"]),
            alpha=float(params["alpha"]),
            iterations=15,
            use_gpu=False,
            # Rows are solved one by one: the same numbers on any number of threads of one machine.
            # Other kinds of processors round differently, which may flip a close choice of a row.
            random_state=0,
        )
        model.fit(csr_matrix((ones, pairs.items, pairs.offsets), shape), show_progress=False)
    users, items = (np.asarray(f, np.float32) for f in (model.user_factors, model.item_factors))
    return FactorView(torch.from_numpy(users), torch.from_numpy(items))


def _implicit_version() -> str:
    try:
        return importlib.metadata.version("implicit")
    except importlib.metadata.PackageNotFoundError:
        return "none"


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("popularity", "train interactions of each item", popularity, ({},)),
        Method(
            "recent",
            "popularity in the time before the held-out event",
            recent,
            _grid(window=(0.1, 0.003, 0.01, 0.03, 0.3, 1.0)),
        ),
        Method(
            "item-knn",
            "item neighbours, damped cosine",
            item_knn,
            _grid(neighbours=(50, 20, 200), shrink=(0, 10, 100)),
        ),
        Method("ease", "linear item-item model", ease, _grid(l2=(100, 10, 30, 300, 1000))),
        Method(
            "als",
            "matrix factorisation of implicit feedback",
            als,
            _grid(factors=(32, 128), regularization=(10, 1, 30), alpha=(1, 10)),
            version=f"1, implicit {_implicit_version()}",
        ),
        Method(
            "mf",
            "matrix factorisation on cross-entropy",
            mf,
            _grid(l2=(0.01, 0.02, 0.005), epochs=EPOCHS_MF),
            quick=False,
        ),
        Method(
            "neumf",
            "NeuMF on cross-entropy",
            neumf,
            _grid(rate=(0.003, 0.001), epochs=EPOCHS_NEUMF),
            quick=False,
        ),
        Method(
            "local-only", "everybody's own model, trained alone", local_only, ({},), quick=False
        ),
    )
}
