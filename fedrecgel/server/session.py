"""A run's settings and its folder, from what was asked for: a new run, or one to go on with."""

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.config import Config
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, RunError
from fedrecgel.common.presets import preset_config
from fedrecgel.common.sizes import message_sizes, refuse_disk, refuse_memory
from fedrecgel.common.state import resolve_device
from fedrecgel.common.target import refuse_replacing
from fedrecgel.server.checkpoint import read_checkpoints
from fedrecgel.server.exchange import Failure
from fedrecgel.server.run_folder import CONFIG, FORMAT, RunFolder
from fedrecgel.server.strategy import FedRecStrategy


@dataclass(frozen=True)
class Session:
    """One run.

    Attributes
    ----------
    head
        Content of ``config.json``.
    resume
        Whether the folder's run goes on.
    catalogue
        For nodes with a file of their own.
    """

    config: Config
    head: dict[str, Any]
    folder: RunFolder
    resume: bool
    catalogue: Catalogue | None = None

    @classmethod
    def begin(
        cls,
        out: Path,
        dataset: Dataset | None,
        *,
        algorithm: str | None = None,
        preset: str | None = None,
        settings: Mapping[str, Any],
        nodes: int | None = None,
        backend: str,
        overwrite: bool = False,
        resume: bool = False,
        catalogue: Catalogue | None = None,
    ) -> "Session":
        """Make the folder, or open it to resume; None stands for the folder's own or the default.

        Parameters
        ----------
        dataset
            The data set, where this machine has it.
        nodes
            How many there will be; None for one, or as many as the messages need.
        catalogue
            For nodes with a file of their own.

        Raises
        ------
        FedRecError
            When a setting, the data or the folder will not do.
        """
        if resume and overwrite:
            raise ConfigError("resume goes on with the run, overwrite removes it; give one of them")
        if overwrite and dataset is not None and dataset.path is not None:
            refuse_replacing(out, dataset.path)
        folder = RunFolder.open(out) if resume else None
        if folder is not None:
            # What cannot be gone on with is said before anything starts.
            read_checkpoints(folder.path)
        head = folder.read_json(CONFIG) if folder is not None else {}
        if folder is not None and dataset is not None:
            _refuse_other_data(head, dataset, folder)
        if folder is not None:
            _refuse_other_kind(head, algorithm, preset, folder)
        algorithm = algorithm or head.get("algorithm", "fedrecgel")
        preset = preset or head.get("preset", "tuned")
        if resume:
            config = make_config(algorithm, {**head["settings"], **settings})
        else:
            known = dataset or catalogue
            config = preset_config(algorithm, preset, known.name if known else "", settings)
        if nodes is None:
            nodes = head["nodes"] if head else _fewest_nodes(config, dataset)
        if dataset is not None:
            _refuse_size(config, dataset, nodes, out)
        head = {
            "format": FORMAT,
            "algorithm": config.algorithm,
            "preset": preset,
            "settings": config.to_flat(),
            "backend": backend,
            "nodes": nodes,
            "device": str(resolve_device(config.device)),
        }
        if dataset is not None:
            path = str(dataset.path.resolve()) if dataset.path else None
            head["data"] = {"path": path, "name": dataset.name, "hash": dataset.hash}
        if catalogue is not None:
            head["catalogue"] = {"name": catalogue.name, "hash": catalogue.hash}
        return cls(config, head, folder or RunFolder.create(out, overwrite), resume, catalogue)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write ``config.json``; leave no folder behind when the block fails before any round."""
        try:
            if not self.resume:
                self.folder.write_json(CONFIG, self.head)
            yield
        except BaseException:
            if not self.resume and not self.folder.began:
                shutil.rmtree(self.folder.path, ignore_errors=True)
            raise

    def strategy(
        self,
        *,
        min_nodes: int,
        wait: float = 60.0,
        on_round: Callable[[dict[str, Any]], None],
        on_failure: Callable[[str, Failure], None],
        stop: Callable[[], bool] | None = None,
        say: Callable[[str], None] | None = None,
    ) -> FedRecStrategy:
        """The strategy, which writes ``metrics.jsonl`` and checkpoints as it goes."""
        written = False

        def after_round(line: dict[str, Any]) -> None:
            nonlocal written
            if "validation" in line or "test" in line:
                if written:
                    self.folder.append_metrics(line)
                else:
                    self.folder.write_metrics(strategy.federation.history.lines)
                written = True
            on_round(line)

        strategy = FedRecStrategy(
            self.config,
            min_nodes=min_nodes,
            wait=wait,
            on_round=after_round,
            on_failure=on_failure,
            run_folder=self.folder.path,
            resume=self.resume,
            stop=stop,
            catalogue=self.catalogue,
            say=say,
        )
        return strategy


def _fewest_nodes(config: Config, dataset: Dataset | None) -> int:
    """One node, or as many as keep each one's message small: their number changes no result."""
    if dataset is None:
        return 1
    users, sizes = dataset.num_users, message_sizes(config, dataset.num_items)
    fitting = max(1, sizes.users_of_message())
    # Which users a round takes is drawn: some nodes have more of them than others.
    return min(users, math.ceil(1.3 * config.fraction * users / fitting))


def _refuse_size(config: Config, dataset: Dataset, nodes: int, out: Path) -> None:
    """Refuse what cannot be sent, or kept on the server or on this machine."""
    users, items = dataset.num_users, dataset.num_items
    message_sizes(config, items).refuse_large(math.ceil(config.fraction * -(-users // nodes)))
    refuse_memory(config, users, items)
    refuse_disk(config, users, items, out.resolve())


def _refuse_other_kind(
    head: Mapping[str, Any], algorithm: str | None, preset: str | None, folder: RunFolder
) -> None:
    if algorithm is not None and algorithm != head["algorithm"]:
        raise RunError(
            f"{folder.path} is a run of {head['algorithm']}, not of {algorithm}; resume it without "
            "naming one, or begin a new run"
        )
    if preset is not None and preset != head["preset"]:
        raise RunError(
            f"{folder.path} began with preset {head['preset']}, not {preset}; resume it without "
            "naming one, or begin a new run"
        )


def _refuse_other_data(head: Mapping[str, Any], dataset: Dataset, folder: RunFolder) -> None:
    begun = head.get("data", {"name": "another data set", "hash": "unknown"})
    if begun["hash"] != dataset.hash:
        raise RunError(
            f"{folder.path} is a run on {begun['name']} with hash {begun['hash'][:12]}, not "
            f"{dataset.hash[:12]} of {dataset.path}; resume it with the same data, or begin a new "
            "run"
        )
