"""Checkpoints: all that the server needs to go on after it was stopped at any moment.

A checkpoint is a folder ``checkpoints/<round>`` with ``state.safetensors`` and ``state.json``,
which holds the hash of the former. It is written under another name and renamed, so it is complete
or absent; the last two are kept. A damaged one is passed over for an older one, with a word; it is
never removed while there is no other. Users' private state is not in a checkpoint: that stays with
the nodes, which keep the rounds that a kept checkpoint refers to.
"""

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedrecgel.common.algorithms.base import ServerState
from fedrecgel.common.errors import RunError
from fedrecgel.common.greeting import Hello
from fedrecgel.common.interactions import Ints
from fedrecgel.common.requests import Experiment
from fedrecgel.common.state import State
from fedrecgel.server.federation import Best, Federation
from fedrecgel.server.run_folder import CHECKPOINTS

FORMAT = 2
KEEP = 2
FOLDER = CHECKPOINTS
PARTS = {
    *("round", "experiment", "sites", "parts", "catalogue"),
    *("optimizer", "best", "history", "norms"),
}
"""What ``state.json`` must hold."""


def write_checkpoint(run: Path, federation: Federation, round: int) -> None:
    """Write the state after ``round`` and drop all but the last two."""
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    tensors, optimizer = _tensors(federation)
    data = save({name: value.contiguous() for name, value in tensors.items()})
    best = federation.best
    document = {
        "format": FORMAT,
        "round": round,
        "experiment": asdict(federation.experiment),
        "sites": _sites(federation),
        "parts": federation.roster.members[0].hello.parts,
        "catalogue": federation.roster.catalogue,
        "optimizer": optimizer,
        "best": None if best is None else {"round": best.round, "value": _or_none(best.value)},
        "history": federation.history.to_json(),
        "norms": list(federation.norms),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    temporary = folder / f".writing-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    _write(temporary / "state.safetensors", data)
    _write(temporary / "state.json", json.dumps(document, allow_nan=False).encode())
    target = folder / f"{round:08d}"
    if target.exists():
        shutil.rmtree(target)
    os.replace(temporary, target)
    for old in _folders(folder)[KEEP:]:
        shutil.rmtree(old, ignore_errors=True)
    federation.saving(KEEP)


class Checkpoint:
    """A checkpoint that was read and found whole.

    Attributes
    ----------
    round
        The last round that it holds.
    experiment
        Of the run that wrote it.
    """

    def __init__(self, path: Path) -> None:
        data = (path / "state.safetensors").read_bytes()
        self._document = json.loads((path / "state.json").read_text())
        if self._document["format"] != FORMAT:
            raise RunError(
                f"{path} has checkpoint format {self._document['format']}, this version reads "
                f"{FORMAT}; finish the run with the version that began it, or run it again"
            )
        if hashlib.sha256(data).hexdigest() != self._document["sha256"]:
            raise ValueError("hash differs")
        missing = PARTS - self._document.keys()
        if missing:
            raise ValueError(f"{sorted(missing)[0]} is missing")
        self._tensors = load(data)
        self.round = int(self._document["round"])
        self.experiment = Experiment(**self._document["experiment"])

    def kept(self) -> list[Ints]:
        """Rounds of private state that this checkpoint refers to, each (N,)."""
        names = ("accepted", "best/accepted")
        return [self._tensors[name].numpy().copy() for name in names if name in self._tensors]

    def restore(self, federation: Federation) -> None:
        """Put a fresh federation into the checkpoint's state.

        Raises
        ------
        RunError
            When a site is not what it was, or the catalogue or a setting is another.
        """
        document, roster = self._document, federation.roster
        if document["catalogue"] != roster.catalogue:
            raise RunError(
                "the run cannot go on: its catalogue differs from that of its checkpoint "
                f"({roster.catalogue[:12]}, not {document['catalogue'][:12]}); use the same data"
            )
        roster.resume(
            [
                Hello(
                    site,
                    users,
                    roster.num_items,
                    roster.catalogue,
                    fingerprint=fingerprint,
                    validation_users=validation,
                    test_users=test,
                    parts=document["parts"],
                )
                for site, users, validation, test, fingerprint in document["sites"]
            ]
        )
        _refuse_other_settings(self.experiment, federation.experiment)
        federation.experiment = replace(federation.experiment, id=self.experiment.id)
        server = federation.server
        then = self._server("")
        for name, value in server.shared.items():
            value.copy_(then.shared[name])  # in place: the optimiser holds these very tensors
        server.auxiliary, server.addressed = then.auxiliary, then.addressed
        if server.optimizer is not None:
            server.optimizer.load_state_dict(_join_optimizer(document["optimizer"], self._tensors))
        accepted = self._tensors["accepted"].numpy()
        roster.accepted[: len(accepted)] = accepted
        federation.trained_items[:] = self._tensors["trained_items"].numpy()
        federation.history.from_json(document["history"])
        federation.norms.extend(document["norms"])
        if document["best"] is not None:
            federation.best = Best(
                document["best"]["round"],
                math.nan if document["best"]["value"] is None else document["best"]["value"],
                self._server("best/"),
                self._tensors["best/trained_items"].numpy(),
                self._tensors["best/accepted"].numpy(),
                self._tensors["best/evaluated"].numpy(),
            )

    def _server(self, prefix: str) -> ServerState:
        return ServerState.from_flat(self._under(prefix))

    def _under(self, prefix: str) -> State:
        return {
            name.removeprefix(prefix): value.clone()
            for name, value in self._tensors.items()
            if name.startswith(prefix)
        }


def read_checkpoints(run: Path) -> tuple[list[Checkpoint], list[Path]]:
    """Those that are whole, newest first, and the folders of damaged ones.

    Raises
    ------
    RunError
        When there are only damaged ones, or one is there that cannot be read.
    """
    found: list[Checkpoint] = []
    damaged: list[Path] = []
    for path in _folders(run / FOLDER):
        try:
            found.append(Checkpoint(path))
        except (FileNotFoundError, ValueError, KeyError, TypeError, SafetensorError):
            damaged.append(path)
        except OSError as error:
            raise RunError(f"{path} cannot be read: {error.strerror or error}") from None
    if damaged and not found:
        raise RunError(
            f"checkpoint {damaged[0]} is damaged and there is no other: the run cannot go on; "
            "restore the folder from a copy, or begin the run again (overwrite)"
        )
    return found, damaged


def restore_last(
    run: Path, federation: Federation, say: Callable[[str], None] = lambda text: None
) -> int:
    """Restore the newest whole checkpoint; its round, or 0 if none was ever written.

    Damaged ones are told and removed once an older one is restored in their place.

    Raises
    ------
    RunError
        When only damaged ones are left, or one does not fit the federation.
    """
    found, damaged = read_checkpoints(run)
    if not found:
        say("there is no checkpoint yet: the run begins at round 1")
        return 0
    found[0].restore(federation)
    for path in damaged:
        say(f"checkpoint {path} is damaged; the run goes on from round {found[0].round}")
        shutil.rmtree(path, ignore_errors=True)
    # Nodes go on keeping what the older one refers to as well, should the newer one get lost.
    federation.saved = [checkpoint.kept() for checkpoint in reversed(found)]
    federation.grow()
    return found[0].round


def last_experiment(run: Path) -> Experiment | None:
    """What `restore_last` will go on with, if there is anything."""
    found = read_checkpoints(run)[0]
    return found[0].experiment if found else None


MAY_CHANGE = frozenset(
    {"rounds", "patience", "round-timeout", "device", "block-size", "memory-limit", "upload"}
)
"""Settings that a resumed run may have otherwise: they change no number of the rounds done."""


def _refuse_other_settings(then: Experiment, now: Experiment) -> None:
    if then.algorithm != now.algorithm:
        raise RunError(
            f"the run cannot go on: it is one of {then.algorithm}, not of {now.algorithm}"
        )
    for name, value in now.settings.items():
        if name not in MAY_CHANGE and then.settings.get(name) != value:
            raise RunError(
                f"the run cannot go on: setting '{name}' was {then.settings.get(name)} when it "
                f"began and is {value} now; use the same, or begin a new run"
            )


def _folders(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    found = folder.iterdir() if folder.is_dir() else []
    return sorted((path for path in found if path.name.isdigit()), reverse=True)


def _sites(federation: Federation) -> list[list[Any]]:
    hellos = (member.hello for member in federation.roster.members)
    return [[h.site, h.users, h.validation_users, h.test_users, h.fingerprint] for h in hellos]


def _tensors(federation: Federation) -> tuple[State, Any]:
    """Everything that is a tensor, by a path-like name, and the rest of the optimiser's state."""
    server, best = federation.server, federation.best
    tensors = _server_tensors("", server)
    tensors["accepted"] = torch.from_numpy(federation.roster.accepted)
    tensors["trained_items"] = torch.from_numpy(federation.trained_items)
    if best is not None:
        tensors |= _server_tensors("best/", best.server)
        tensors["best/accepted"] = torch.from_numpy(best.accepted)
        tensors["best/evaluated"] = torch.from_numpy(best.evaluated)
        tensors["best/trained_items"] = torch.from_numpy(best.trained_items)
    rest: Any = None
    if server.optimizer is not None:
        rest = server.optimizer.state_dict()
        for path, value in _optimizer_tensors(rest["state"]):
            tensors[path] = value
        rest = {
            "param_groups": rest["param_groups"],
            "state": {
                str(number): {k: v for k, v in state.items() if not isinstance(v, Tensor)}
                for number, state in rest["state"].items()
            },
        }
    return tensors, rest


def _server_tensors(prefix: str, server: ServerState) -> State:
    return {f"{prefix}{name}": value for name, value in server.to_flat().items()}


def _optimizer_tensors(state: dict[int, dict[str, Any]]) -> Iterator[tuple[str, Tensor]]:
    for number, values in state.items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                yield f"optimizer/{number}/{name}", value


def _join_optimizer(rest: dict[str, Any], tensors: State) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {int(n): dict(values) for n, values in rest["state"].items()}
    for path, value in tensors.items():
        if path.startswith("optimizer/"):
            _, number, name = path.split("/", 2)
            state[int(number)][name] = value.clone()
    return {"state": state, "param_groups": rest["param_groups"]}


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _or_none(value: float) -> float | None:
    """A number as JSON can hold it: an evaluation over nobody gave nan."""
    return None if math.isnan(value) else value
