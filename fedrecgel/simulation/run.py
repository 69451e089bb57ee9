"""`simulate`: one run in this process, from a prepared data set to a run folder."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from fedrecgel.client.app import app
from fedrecgel.client.store import load_ranks
from fedrecgel.common.algorithms.registry import algorithm_class
from fedrecgel.common.config import Config, Scalar, kebab
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.metrics import RankCounts
from fedrecgel.common.presets import preset_settings
from fedrecgel.common.state import resolve_device
from fedrecgel.server.exchange import Failure
from fedrecgel.server.federation import Outcome
from fedrecgel.server.run_folder import CONFIG, FORMAT, RESULT, RunFolder
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.grid import InProcessGrid
from fedrecgel.simulation.plots import curves
from fedrecgel.simulation.report import assemble, report_of_ranks
from fedrecgel.simulation.result import Result


def simulate(
    data: str | Path | Dataset,
    out: str | Path,
    *,
    algorithm: str = "fedrecgel",
    preset: str = "tuned",
    nodes: int = 1,
    overwrite: bool = False,
    progress: bool | None = None,
    **settings: Scalar,
) -> Result:
    """Train and evaluate in this process, through Flower's Strategy and ClientApp.

    Parameters
    ----------
    data
        Folder made by `fedrecgel.prepare`, or the `Dataset` it returned.
    out
        Run folder to make; refused if something is there, unless it is a run and ``overwrite``.
    algorithm
        Name in the registry: ``fedrecgel``, ``fedncf``.
    preset
        ``tuned`` or ``paper``; ``settings`` override it.
    nodes
        How many Flower nodes share the users. It changes the speed, not the numbers (up to
        rounding in float32).
    progress
        Show a progress bar; by default only on a terminal.
    settings
        Settings by name (`fedrecgel.common.config`), for example ``rounds=100, server_lr=0.01``.

    Raises
    ------
    FedRecError
        With one line that says what is wrong, where, and what to do.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> from fedrecgel import prepare
    >>> data = prepare("synthetic", f"{folder}/data", users=100)
    >>> result = simulate(data, f"{folder}/run", rounds=2)
    >>> result.round
    2
    """
    dataset = data if isinstance(data, Dataset) else Dataset.load(data)
    if dataset.path is None:
        raise ConfigError("the data set exists in memory only; give a folder made by prepare")
    config = make_run_config(algorithm, preset, dataset.name, settings)
    if not 1 <= nodes <= dataset.num_users:
        raise ConfigError(
            f"nodes must be between 1 and the number of users, {dataset.num_users}, not {nodes}"
        )
    device = resolve_device(config.device)
    folder = RunFolder.create(Path(out), overwrite)
    head = {
        "format": FORMAT,
        "algorithm": config.algorithm,
        "preset": preset,
        "settings": config.to_flat(),
        "nodes": nodes,
        "device": str(device),
        "data": {"path": str(dataset.path.resolve()), "name": dataset.name, "hash": dataset.hash},
    }
    try:
        folder.write_json(CONFIG, head)
        outcome = _train(config, dataset, folder, nodes, progress)
        _write_result(outcome, config, head, dataset, folder)
    except BaseException:
        if not (folder.path / "metrics.jsonl").exists():
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return Result.open(folder.path)


def make_run_config(
    algorithm: str, preset: str, data_name: str, settings: Mapping[str, Any]
) -> Config:
    """Effective settings: the preset's for this data set, then the caller's."""
    config_class = algorithm_class(algorithm).config_class
    known = {kebab(name) for name in config_class.__dataclass_fields__}
    values: dict[str, Any] = dict(preset_settings(preset, data_name, known))
    values.update({kebab(name): value for name, value in settings.items()})
    return config_class.from_flat(values)


def _train(
    config: Config, dataset: Dataset, folder: RunFolder, nodes: int, progress: bool | None
) -> Outcome:
    node_configs: list[dict[str, Any]] = [
        {"partition-id": number, "num-partitions": nodes} for number in range(nodes)
    ]
    run_config = {"data": str(dataset.path), "state": str(folder.private)}
    grid = InProcessGrid(app, node_configs, run_config)
    disable = None if progress is None else not progress
    with tqdm(total=config.rounds, unit="round", disable=disable, dynamic_ncols=True) as bar:
        shown: dict[str, str] = {}
        seen: set[str] = set()

        def on_round(line: dict[str, Any]) -> None:
            if line["loss"] is not None:
                shown["loss"] = f"{line['loss']:.4f}"
            for split in ("validation", "test"):
                if split in line:
                    folder.append_metrics(line)
                    shown[f"{split} HR@10"] = f"{line[split]['sampled']['hr@10']['value']:.4f}"
            bar.set_postfix(shown)
            bar.update()

        def on_failure(site: str, failure: Failure) -> None:
            if failure.reason not in seen:
                seen.add(failure.reason)
                tqdm.write(f"{site}: {failure.reason}\n{failure.detail}".rstrip())

        strategy = FedRecStrategy(config, min_nodes=nodes, on_round=on_round, on_failure=on_failure)
        strategy.start(grid)
    assert strategy.outcome is not None
    return strategy.outcome


def _write_result(
    outcome: Outcome, config: Config, head: dict[str, Any], dataset: Dataset, folder: RunFolder
) -> None:
    best = outcome.best
    folder.write_model(best.shared)
    ranks = load_ranks(folder.private)
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
        trained_items=best.trained_items,
    )
    # The federation's own sums are the result; the ranks above only add what sums cannot tell.
    report["test"] = {ranking: sums.values() for ranking, sums in outcome.test.items()}
    chosen: dict[str, Any] = {"chosen": best.round, "by": _how(outcome)}
    if outcome.selected_by:
        chosen["value"] = best.value
    history: Any = outcome.history.lines
    result = assemble(
        report,
        history,
        algorithm=config.algorithm,
        seed=config.seed,
        rounds=config.rounds,
        chosen=chosen,
        preset=head["preset"],
        settings=head["settings"],
        nodes=head["nodes"],
        device=head["device"],
        failures=outcome.history.failures,
        experiment=outcome.experiment.id,
    )
    curves(history, result, folder.path / "curves.png")
    folder.write_json(CONFIG, {**head, "experiment": outcome.experiment.id, "round": best.round})
    folder.write_json(RESULT, result)


def _by_dataset_user(outcome: Outcome, dataset: Dataset) -> NDArray[np.bool_]:
    """Which users were trained, by data set index; the roster counts only users who can train."""
    trained = np.zeros(dataset.num_users, dtype=bool)
    trainable = np.flatnonzero(np.diff(dataset.train_offsets) > 0)
    trained[trainable] = outcome.best.accepted > 0
    return trained


def _how(outcome: Outcome) -> str:
    if outcome.selected_by is None:
        return "last round (protocol paper has no validation items)"
    ranking, _, name = outcome.selected_by.partition(".")
    return f"highest validation {name} ({ranking})"
