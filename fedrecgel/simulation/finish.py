"""The end of a run: the model, ``result.json`` and ``curves.png``, from what the strategy left."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedrecgel.client.store import load_ranks
from fedrecgel.common.algorithms.delta import LocalConfig
from fedrecgel.common.algorithms.registry import algorithm_class, make_algorithm
from fedrecgel.common.config import Config
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.metrics import RankCounts
from fedrecgel.server.federation import Outcome
from fedrecgel.server.run_folder import CONFIG, RESULT, RunFolder
from fedrecgel.simulation.central.comparison import reference_report
from fedrecgel.simulation.plots import curves
from fedrecgel.simulation.report import assemble, report_of_ranks, with_sums
from fedrecgel.simulation.rounds import training_summary
from fedrecgel.simulation.sanity import LEAKY

IN_RESULT = ("preset", "settings", "nodes", "device", "backend")
"""Entries of ``config.json`` that ``result.json`` repeats."""


def write_result(
    outcome: Outcome,
    config: Config,
    head: dict[str, Any],
    folder: RunFolder,
    dataset: Dataset | None,
    state: Path,
    central: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Write what a finished run leaves, and return the content of ``result.json``.

    Parameters
    ----------
    head
        Content of ``config.json`` so far.
    dataset
        None where the nodes' data are not this machine's: the result then holds what the nodes'
        sums say, and nothing of popularity, coverage or overlap.
    state
        Folder of the nodes' private state, for the ranks that they noted; read with ``dataset``.
    central
        References to measure beside the model; None for none, empty for all that can be had.
    """
    folder.write_model(outcome.best.server)
    # A run killed after its last checkpoint may have lost its last line.
    folder.write_metrics(outcome.history.lines)
    told = {
        **{name: head[name] for name in IN_RESULT if name in head},
        "failures": outcome.history.failures,
        "failures_by_site": outcome.history.failures_by_site,
        "experiment": outcome.experiment.id,
        "server_saw": server_saw(outcome, config),
        "scored_with": algorithm_class(config.algorithm).scoring(config),
        **({"item_rate": config.item_rate} if isinstance(config, LocalConfig) else {}),
    }
    history: Any = outcome.history.lines
    chosen = _chosen(outcome)
    if dataset is None:
        result = {
            "format": 1,
            "algorithm": config.algorithm,
            "seed": config.seed,
            "round": {**chosen, "trained": outcome.rounds},
            "split": "test",
            "test": _sums(outcome),
            "users": {
                "all": outcome.roster.num_users,
                "eligible": outcome.roster.test_users,
                "evaluated": outcome.test["full"].users,
                "trained": int(_trained(outcome).sum()),
            },
            "training": training_summary(history),
            **told,
        }
    else:
        result = assemble(
            _report(outcome, dataset, state, central),
            history,
            algorithm=config.algorithm,
            seed=config.seed,
            rounds=outcome.rounds,
            chosen=chosen,
            **told,
        )
        curves(history, result, folder.path / "curves.png")
    if config.negatives == "leaky":
        result["warnings"] = [LEAKY, *result.get("warnings", [])]
    ended = {"experiment": outcome.experiment.id, "round": outcome.best.round}
    folder.write_json(CONFIG, {**head, **ended})
    folder.write_json(RESULT, result)
    return result


def _report(
    outcome: Outcome, dataset: Dataset, state: Path, central: Sequence[str] | None
) -> dict[str, Any]:
    ranks = load_ranks(state)
    users = (ranks[:, 0] >= 0).nonzero()[0]
    model = {
        "sampled": RankCounts(ranks[users, 0], ranks[users, 1], users),
        "full": RankCounts(ranks[users, 2], ranks[users, 3], users),
    }
    report = report_of_ranks(
        dataset,
        model,
        ranks[users, 4:],
        trained_users=_by_dataset_user(outcome, dataset),
        trained_items=outcome.best.trained_items,
    )
    report = with_sums(report, _sums(outcome))
    if central is not None:
        report["references"] = reference_report(dataset, central, model)
    return report


def server_saw(outcome: Outcome, config: Config) -> str:
    """What reached the server of the users' updates, in one line."""
    algorithm = make_algorithm(config, outcome.roster.num_items)
    if algorithm.reduce == "per-user":
        return f"each user's own update: {', '.join(sorted(algorithm.tensors.sent))}"
    sizes = [member.last - member.first for member in outcome.roster.members]
    smallest = min(size for size in sizes if size)
    return f"sums over the users of each node; the smallest node has {smallest:,}"


def _sums(outcome: Outcome) -> dict[str, Any]:
    return {ranking: sums.values() for ranking, sums in outcome.test.items()}


def _trained(outcome: Outcome) -> NDArray[np.bool_]:
    return np.asarray(outcome.best.accepted > 0)


def _by_dataset_user(outcome: Outcome, dataset: Dataset) -> NDArray[np.bool_]:
    """Which users were trained, by data set index; the roster counts only users who can train."""
    trained = np.zeros(dataset.num_users, dtype=bool)
    trained[np.flatnonzero(np.diff(dataset.train_offsets) > 0)] = _trained(outcome)
    return trained


def _chosen(outcome: Outcome) -> dict[str, Any]:
    if outcome.selected_by is None:
        how = "last round (protocol paper has no validation items)"
        return {"chosen": outcome.best.round, "by": how}
    ranking, _, name = outcome.selected_by.partition(".")
    how = f"highest validation {name} ({ranking})"
    return {"chosen": outcome.best.round, "by": how, "value": outcome.best.value}
