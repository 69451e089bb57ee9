"""The server's half of the Flower app: reads run-config, runs the strategy, writes the run folder.

Settings are those of `Config`, by the same names, and `RunOptions` beside them. A value that is an
empty string is not given: the preset's holds. ``pyproject.toml`` lists all of them that way, for
Flower takes no other names.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol

from flwr.app import Context
from flwr.serverapp import Grid

from fedrecgel.common.config import Config, kebab
from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, FedRecError
from fedrecgel.server.exchange import Failure
from fedrecgel.server.federation import Outcome
from fedrecgel.server.gathering import QUIET, wait_for_nodes
from fedrecgel.server.run_folder import RunFolder
from fedrecgel.server.session import Session

UserConfig = Mapping[str, bool | int | float | str]


class Shown(Protocol):
    """What is told of a run while it goes on."""

    def say(self, text: str) -> None:
        """One line."""

    def on_round(self, line: dict[str, Any]) -> None:
        """A round's line."""

    def on_failure(self, site: str, failure: Failure) -> None:
        """A failed or refused reply."""


Finish = Callable[[Outcome, Config, dict[str, Any], RunFolder, Dataset | None, Path], object]
"""Writes what a finished run leaves (`fedrecgel.simulation.finish.write_result`)."""


@dataclass(frozen=True)
class RunOptions:
    """What run-config holds beside the settings; each with a line of help and an example."""

    algorithm: str = "fedrecgel"
    preset: str = "tuned"
    data: str = ""
    catalogue: str = ""
    state: str = ""
    out: str = ""
    min_nodes: int = 1
    wait: float = 60.0
    overwrite: bool = False
    resume: bool = False

    @classmethod
    def take(cls, values: dict[str, Any]) -> "RunOptions":
        """Take the options out of run-config's values and leave the settings."""
        found: dict[str, Any] = {}
        for field in fields(cls):
            value = values.pop(kebab(field.name), "")
            if value != "":
                found[field.name] = _typed(kebab(field.name), value, type(field.default))
        return cls(**found)

    @property
    def state_folder(self) -> Path:
        """Where nodes of this machine keep private state, unless they are told otherwise."""
        return Path(self.state) if self.state else Path(self.out) / "private"


HELP = {
    "algorithm": "fedrecgel or fedncf",
    "preset": "tuned, paper, or one-step (fedncf): settings to start from",
    "data": "folder made by fedrecgel prepare; nodes may name their own in node-config",
    "catalogue": "file that nodes with interactions of their own prepare them by",
    "state": "folder of the nodes' private state; default: OUT/private",
    "out": "run folder to make, an absolute path",
    "min-nodes": "nodes to wait for",
    "wait": "seconds to wait for them, and later for somebody when all are away",
    "overwrite": "replace a run in OUT",
    "resume": "go on with the run in OUT from its last checkpoint",
}


def serve(grid: Grid, context: Context, shown: Callable[[int], Shown], finish: Finish) -> None:
    """Run a federation to its end.

    Parameters
    ----------
    shown
        Makes, from the number of rounds, what is told of the run.
    finish
        Writes the result; given a data set only where this machine can read the nodes' own.

    Raises
    ------
    FedRecError
        Flower prints it as one line and marks the run as failed.
    """
    _print_our_errors_in_one_line()
    values = {name: value for name, value in context.run_config.items() if value != ""}
    named = set(values)
    options = RunOptions.take(values)
    if not options.out:
        raise ConfigError("run-config has no 'out', the run folder; give it: out='/runs/first'")
    dataset = _readable(options.data)
    session = Session.begin(
        Path(options.out),
        dataset,
        # A run that is gone on with has its own.
        algorithm=options.algorithm if "algorithm" in named else None,
        preset=options.preset if "preset" in named else None,
        settings=values,
        backend="flower",
        overwrite=options.overwrite,
        resume=options.resume,
        catalogue=Catalogue.load(options.catalogue) if options.catalogue else None,
    )
    show = shown(session.config.rounds)
    with session.writing():
        show.say(f"run folder: {session.folder.path.resolve()}")
        show.say("settings: " + " ".join(f"{k}={v}" for k, v in session.config.to_flat().items()))
        nodes = len(wait_for_nodes(grid, options.min_nodes, options.wait, quiet=QUIET))
        session.head["nodes"] = nodes
        strategy = session.strategy(
            # Who names a number can do without the others; else all that are there must answer.
            min_nodes=options.min_nodes if "min-nodes" in named else nodes,
            wait=options.wait,
            on_round=show.on_round,
            on_failure=show.on_failure,
            say=show.say,
        )
        show.say(f"{nodes} node" + ("s" if nodes > 1 else ""))
        strategy.start(grid)
        assert strategy.outcome is not None
        state = options.state_folder
        seen = dataset if (state / "ranks.npy").is_file() else None
        finish(strategy.outcome, session.config, session.head, session.folder, seen, state)
        show.say(_last_line(strategy.outcome, len(strategy.outcome.roster.members)))


def _last_line(outcome: Outcome, nodes: int) -> str:
    found = {ranking: sums.values() for ranking, sums in outcome.test.items()}
    values = ", ".join(
        f"{ranking} {name} {cells[name]['value']:.4f}"
        for ranking, cells in found.items()
        for name in ("hr@10", "ndcg@10")
        if cells[name]["value"] is not None
    )
    roster, tested = outcome.roster, outcome.test["full"].users
    over = f" over {tested:,} of {roster.test_users:,} users" if tested < roster.test_users else ""
    return (
        f"{roster.num_users:,} users on {nodes} nodes; test of round {outcome.best.round}{over}: "
        f"{values}"
    )


def _readable(data: str) -> Dataset | None:
    """The nodes' data set, where this machine has it as well: in a simulation."""
    if not data or not (Path(data) / "manifest.json").is_file():
        return None
    return Dataset.load(data)


def _typed(name: str, value: Any, wanted: type) -> Any:  # noqa: ANN401 - of any scalar type
    if wanted is float and type(value) is int:
        return float(value)
    if type(value) is not wanted:
        raise ConfigError(f"'{name}' needs a value of type {wanted.__name__}, not {value!r}")
    return value


class _OneLine(logging.Filter):
    """Takes the traceback away from errors that say in one line what to do."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, FedRecError):
            record.msg, record.args, record.exc_info = f"error: {error}", (), None
        return True


def _print_our_errors_in_one_line() -> None:
    logger = logging.getLogger("flwr")
    if not any(isinstance(found, _OneLine) for found in logger.filters):
        logger.addFilter(_OneLine())
