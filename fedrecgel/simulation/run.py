"""`simulate`: one run, from a prepared data set to a run folder."""

import shutil
import sys
from pathlib import Path
from typing import Any

from tqdm import tqdm

from fedrecgel.client.app import app
from fedrecgel.common.config import Config, Scalar
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.presets import preset_config
from fedrecgel.common.sizes import message_sizes
from fedrecgel.common.state import resolve_device
from fedrecgel.server.exchange import Failure
from fedrecgel.server.federation import Outcome
from fedrecgel.server.run_folder import CONFIG, FORMAT, RunFolder
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.backends import BACKENDS, Carrier
from fedrecgel.simulation.finish import write_result
from fedrecgel.simulation.result import Result


def simulate(
    data: str | Path | Dataset,
    out: str | Path,
    *,
    algorithm: str = "fedrecgel",
    preset: str = "tuned",
    nodes: int = 1,
    backend: str = "in-process",
    ray_address: str = "",
    overwrite: bool = False,
    progress: bool | None = None,
    **settings: Scalar,
) -> Result:
    """Train and evaluate on this machine, through Flower's Strategy and ClientApp.

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
    backend
        ``in-process``, or ``ray``: the nodes' work in several processes, by Flower's simulation.
    ray_address
        Address of a running Ray cluster to use; by default backend ``ray`` starts its own.
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
    config = preset_config(algorithm, preset, dataset.name, settings)
    if not 1 <= nodes <= dataset.num_users:
        raise ConfigError(
            f"nodes must be between 1 and the number of users, {dataset.num_users}, not {nodes}"
        )
    if backend not in BACKENDS:
        raise ConfigError(f"unknown backend '{backend}'; choose from {', '.join(BACKENDS)}")
    sizes = message_sizes(config, dataset.num_items)
    sizes.refuse_large()
    device = resolve_device(config.device)
    folder = RunFolder.create(Path(out), overwrite)
    head = {
        "format": FORMAT,
        "algorithm": config.algorithm,
        "preset": preset,
        "settings": config.to_flat(),
        "backend": backend,
        "nodes": nodes,
        "device": str(device),
        "data": {"path": str(dataset.path.resolve()), "name": dataset.name, "hash": dataset.hash},
    }
    try:
        folder.write_json(CONFIG, head)
        outcome = _train(config, dataset, folder, Carrier(backend, nodes, ray_address), progress)
        write_result(outcome, config, head, folder, dataset, folder.private)
    except BaseException:
        if not (folder.path / "metrics.jsonl").exists():
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return Result.open(folder.path)


def _train(
    config: Config, dataset: Dataset, folder: RunFolder, carrier: Carrier, progress: bool | None
) -> Outcome:
    assert dataset.path is not None
    # Other processes may work in another folder.
    run_config = {"data": str(dataset.path.resolve()), "state": str(folder.private.resolve())}
    sizes = message_sizes(config, dataset.num_items)
    samples = len(dataset.train_items) / dataset.num_users * (1 + config.num_negatives)
    _say(sizes.line(samples))
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

        strategy = FedRecStrategy(
            config, min_nodes=carrier.nodes, on_round=on_round, on_failure=on_failure
        )
        carrier.start(strategy, app, run_config, sizes, _say)
    assert strategy.outcome is not None
    return strategy.outcome


def _say(line: str) -> None:
    """On stderr, where the progress is; stdout is for results."""
    print(line, file=sys.stderr)
