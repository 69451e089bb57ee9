"""`simulate`: one run, from a prepared data set to a run folder."""

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fedrecgel.client.app import app
from fedrecgel.common.config import Scalar
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.sizes import message_sizes
from fedrecgel.server.federation import Outcome
from fedrecgel.server.session import Session
from fedrecgel.simulation.backends import BACKENDS, Carrier
from fedrecgel.simulation.central.tuned import check_methods
from fedrecgel.simulation.finish import write_result
from fedrecgel.simulation.progress import Progress, interruptible
from fedrecgel.simulation.result import Result

FIRST_ANSWERS = 600.0
"""Seconds for all nodes to say that they are there. None can be missing, but Ray starts processes
for them, which takes minutes on a busy machine."""


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
    references: Sequence[str] | None = None,
    on_round: Callable[[dict[str, Any]], None] | None = None,
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
        Name in the registry: ``fedrecgel`` (default), ``fedncf``, ``fedmf``, ``perfedrec``,
        ``pfedrec``, ``fedrap``, ``cofedrec``, ``gpfedrec``.
    preset
        ``tuned`` (default), ``paper``, or for FedNCF ``one-step``; ``settings`` override it.
    nodes
        How many Flower nodes share the users (default: 1, more where the messages of one would be
        too large). It changes the speed, not the numbers (up to rounding in float32).
    backend
        ``in-process``, or ``ray``: the nodes' work in several processes, by Flower's simulation.
    ray_address
        Address of a running Ray cluster to use; by default backend ``ray`` starts its own.
    resume
        Go on with the run in ``out`` from its last checkpoint, with its own settings but for those
        given here, of which only some may change.
    log
        ``auto``: a bar on a terminal, else a line per round; ``bar``, ``text``, ``json``, ``none``.
    references
        Central methods to measure beside the model (``item-knn``, ``ease``, ...); an empty list for
        all that can be had. They are tuned on validation once and kept in the data folder.
    on_round
        Told the line of every round, as ``log="json"`` prints it.
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
    if backend not in BACKENDS:
        raise ConfigError(f"unknown backend '{backend}'; choose from {', '.join(BACKENDS)}")
    if nodes is not None and not 1 <= nodes <= dataset.num_users:
        raise ConfigError(
            f"nodes must be between 1 and the number of users, {dataset.num_users}, not {nodes}"
        )
    check_methods(references or [])
    session = Session.begin(
        Path(out),
        dataset,
        algorithm=algorithm,
        preset=preset,
        settings=settings,
        nodes=nodes,
        backend=backend,
        overwrite=overwrite,
        resume=resume,
    )
    folder, private = session.folder, session.folder.private
    with session.writing():
        carrier = Carrier(backend, session.head["nodes"], ray_address)
        outcome = _train(session, dataset, carrier, log, on_round)
        write_result(outcome, session.config, session.head, folder, dataset, private, references)
    gc.collect()  # A figure is a heap of cycles; those of many runs in one process would pile up.
    result = Result.open(folder.path)
    if dataset.several:
        result.measure_several()
    return result


def _train(
    session: Session,
    dataset: Dataset,
    carrier: Carrier,
    log: str,
    on_round: Callable[[dict[str, Any]], None] | None,
) -> Outcome:
    assert dataset.path is not None
    config = session.config
    # Other processes may work in another folder.
    private = str(session.folder.private.resolve())
    run_config = {"data": str(dataset.path.resolve()), "state": private}
    sizes = message_sizes(config, dataset.num_items)
    samples = len(dataset.train_items) / dataset.num_users * (1 + config.num_negatives)
    with Progress(config.rounds, log) as progress, interruptible(progress.say) as stop:
        progress.say(sizes.line(samples))

        def after_round(line: dict[str, Any]) -> None:
            progress.on_round(line)
            if on_round is not None:
                on_round(line)

        strategy = session.strategy(
            min_nodes=carrier.nodes,
            wait=FIRST_ANSWERS,
            on_round=after_round,
            on_failure=progress.on_failure,
            stop=stop,
            say=progress.say,
        )
        carrier.start(strategy, app, run_config, sizes, progress.say)
    assert strategy.outcome is not None
    return strategy.outcome
