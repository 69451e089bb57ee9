"""`simulate`: one run, from a prepared data set to a run folder."""

import shutil
from pathlib import Path
from typing import Any

from fedrecgel.client.app import app
from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.config import Config, Scalar
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, RunError
from fedrecgel.common.presets import preset_config
from fedrecgel.common.sizes import message_sizes
from fedrecgel.common.state import resolve_device
from fedrecgel.server.federation import Outcome
from fedrecgel.server.run_folder import CONFIG, FORMAT, RunFolder
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.backends import BACKENDS, Carrier
from fedrecgel.simulation.finish import write_result
from fedrecgel.simulation.progress import Progress, interruptible
from fedrecgel.simulation.result import Result


def simulate(
    data: str | Path | Dataset,
    out: str | Path,
    *,
    algorithm: str | None = None,
    preset: str | None = None,
    nodes: int | None = None,
    backend: str = "in-process",
    ray_address: str = "",
    overwrite: bool = False,
    resume: bool = False,
    log: str = "auto",
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
        Name in the registry: ``fedrecgel`` (default), ``fedncf``.
    preset
        ``tuned`` (default) or ``paper``; ``settings`` override it.
    nodes
        How many Flower nodes share the users (default: 1). It changes the speed, not the numbers
        (up to rounding in float32).
    backend
        ``in-process``, or ``ray``: the nodes' work in several processes, by Flower's simulation.
    ray_address
        Address of a running Ray cluster to use; by default backend ``ray`` starts its own.
    resume
        Go on with the run in ``out`` from its last checkpoint, with its own settings but for those
        given here, of which only some may change.
    log
        ``auto``: a bar on a terminal, else a line per round; ``bar``, ``text``, ``json``, ``none``.
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
    folder = RunFolder.open(Path(out)) if resume else None
    head = _head_of(folder, dataset) if folder is not None else {}
    algorithm = algorithm or head.get("algorithm", "fedrecgel")
    nodes = head.get("nodes", 1) if nodes is None else nodes
    preset = preset or head.get("preset", "tuned")
    if resume:
        config = make_config(algorithm, {**head["settings"], **settings})
    else:
        config = preset_config(algorithm, preset, dataset.name, settings)
    if not 1 <= nodes <= dataset.num_users:
        raise ConfigError(
            f"nodes must be between 1 and the number of users, {dataset.num_users}, not {nodes}"
        )
    if backend not in BACKENDS:
        raise ConfigError(f"unknown backend '{backend}'; choose from {', '.join(BACKENDS)}")
    message_sizes(config, dataset.num_items).refuse_large()
    device = resolve_device(config.device)
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
    folder = folder or RunFolder.create(Path(out), overwrite)
    try:
        if not resume:
            folder.write_json(CONFIG, head)
        carrier = Carrier(backend, nodes, ray_address)
        outcome = _train(config, dataset, folder, carrier, log, resume)
        write_result(outcome, config, head, folder, dataset, folder.private)
    except BaseException:
        if not resume and not folder.began:
            shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return Result.open(folder.path)


def _head_of(folder: RunFolder, dataset: Dataset) -> dict[str, Any]:
    """What the run to resume was begun with."""
    head = folder.read_json(CONFIG)
    if head["data"]["hash"] != dataset.hash:
        raise RunError(
            f"{folder.path} is a run on {head['data']['name']} with hash "
            f"{head['data']['hash'][:12]}, not {dataset.hash[:12]} of {dataset.path}; "
            "resume it with the same data, or begin a new run"
        )
    return head


def _train(
    config: Config,
    dataset: Dataset,
    folder: RunFolder,
    carrier: Carrier,
    log: str,
    resume: bool,
) -> Outcome:
    assert dataset.path is not None
    # Other processes may work in another folder.
    run_config = {"data": str(dataset.path.resolve()), "state": str(folder.private.resolve())}
    sizes = message_sizes(config, dataset.num_items)
    samples = len(dataset.train_items) / dataset.num_users * (1 + config.num_negatives)
    with Progress(config.rounds, log) as progress, interruptible(progress.say) as stop:
        progress.say(sizes.line(samples))
        written = False

        def on_round(line: dict[str, Any]) -> None:
            nonlocal written
            if "validation" in line or "test" in line:
                if written:
                    folder.append_metrics(line)
                else:
                    folder.write_metrics(strategy.federation.history.lines)
                written = True
            progress.on_round(line)

        strategy = FedRecStrategy(
            config,
            min_nodes=carrier.nodes,
            on_round=on_round,
            on_failure=progress.on_failure,
            run_folder=folder.path,
            resume=resume,
            stop=stop,
        )
        carrier.start(strategy, app, run_config, sizes, progress.say)
    assert strategy.outcome is not None
    return strategy.outcome
