"""The folder of a run: effective settings, a line per evaluated round, the shared model."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from fedrecgel.common.algorithms.base import ServerState
from fedrecgel.common.errors import RunError
from fedrecgel.common.json_file import write_json
from fedrecgel.common.state import State
from fedrecgel.common.target import check_folder

FORMAT = 1
CONFIG, METRICS, RESULT, MODEL, SERVER, PRIVATE = (
    "config.json",
    "metrics.jsonl",
    "result.json",
    "model.safetensors",
    "server.safetensors",
    "private",
)
CHECKPOINTS = "checkpoints"


class RunFolder:
    """Writes a run's files; every file is complete or absent.

    Layout: ``config.json`` ``metrics.jsonl`` ``result.json`` ``model.safetensors`` ``curves.png``
    and ``private/``, the users' own state, which only this machine's user may read; algorithms that
    keep something for single users on the server add ``server.safetensors`` (mode 0600).
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @staticmethod
    def check(path: Path, overwrite: bool) -> None:
        """Refuse a folder that `create` would refuse.

        Raises
        ------
        RunError
            When something is there that is not a run, or a run and ``overwrite`` is not given.
        """
        check_folder(path)
        if not path.exists() or not any(path.iterdir()):
            return
        if not _is_run(path):
            raise RunError(f"{path} is not empty and not a run of fedrecgel; choose another --out")
        if not overwrite:
            raise RunError(f"{path} holds a run already; choose another --out or add --overwrite")

    @classmethod
    def create(cls, path: Path, overwrite: bool) -> "RunFolder":
        """A new, empty folder; see `check`."""
        cls.check(path, overwrite)
        if path.exists() and any(path.iterdir()):
            shutil.rmtree(path.resolve())
        try:
            path.resolve().mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"cannot create {path}: {error.strerror}") from None
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run."""
        if not (path / CONFIG).is_file():
            raise RunError(
                f"{path} is not a run folder; "
                f"make one with: fedrecgel simulate --data DIR --out {path}"
            )
        folder = cls(path)
        found = folder.read_json(CONFIG).get("format")
        if found != FORMAT:
            raise RunError(
                f"{path} has run format {found}, this version reads {FORMAT}; run it again"
            )
        return folder

    @property
    def began(self) -> bool:
        """Whether there is anything in it worth keeping."""
        return (self.path / METRICS).exists() or (self.path / CHECKPOINTS).is_dir()

    @property
    def private(self) -> Path:
        """Where the users' state is kept."""
        return self.path / PRIVATE

    def write_json(self, name: str, value: object) -> None:
        """Write a JSON file."""
        write_json(self.path / name, value)

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file of the run."""
        path = self.path / name
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(f"{path} is missing: the run did not finish; run it again") from None
        except ValueError:
            raise RunError(f"{path} is damaged; run it again") from None
        if not isinstance(value, dict):
            raise RunError(f"{path} is damaged; run it again")
        return value

    def write_metrics(self, lines: list[dict[str, Any]]) -> None:
        """Replace the evaluated rounds: a resumed run drops those after its checkpoint."""
        text = "".join(json.dumps(line, allow_nan=False) + "\n" for line in lines)
        _replace(self.path / METRICS, text.encode())

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add an evaluated round."""
        with (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line, allow_nan=False) + "\n")

    def write_model(self, server: ServerState) -> None:
        """Keep the shared tensors, and in a second file what the server has for single users."""
        own = {n: v for n, v in server.to_flat().items() if not n.startswith("shared/")}
        for name, tensors in ((MODEL, server.shared), (SERVER, own)):
            if tensors or name == MODEL:
                temporary = self.path / f".{name}.{os.getpid()}"
                save_file({n: value.contiguous() for n, value in tensors.items()}, temporary)
                os.chmod(temporary, 0o600 if name == SERVER else 0o644)
                os.replace(temporary, self.path / name)

    def read_model(self) -> ServerState:
        """The server's tensors of the chosen round."""
        own = self._read_tensors(SERVER) if (self.path / SERVER).exists() else {}
        return replace(ServerState.from_flat(own), shared=self._read_tensors(MODEL))

    def _read_tensors(self, name: str) -> State:
        path = self.path / name
        try:
            return dict(load_file(path))
        except FileNotFoundError:
            raise RunError(f"{path} is missing: the run did not finish; run it again") from None
        except (SafetensorError, OSError):
            raise RunError(f"{path} is damaged; run it again") from None


def _is_run(path: Path) -> bool:
    """Whether a folder is a run of any format; a ``config.json`` alone may be anybody's."""
    try:
        head = json.loads((path / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(head, dict) and head.keys() >= {"format", "algorithm", "settings"}


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(data)
    os.replace(temporary, path)
