"""The shared model that a run leaves at a site, for whoever serves recommendations there.

``STATE/published/model.safetensors`` (mode 0600) holds the tensors that the site evaluated the
final test with and, as metadata, what they belong to. One file, moved into its place: it is
complete and of one run, or as it was, whenever a process or the machine dies.
"""

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedrecgel.client.lock import alone
from fedrecgel.client.site import Site
from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.errors import RunError
from fedrecgel.common.hashing import Keys, user_keys
from fedrecgel.common.interactions import Ints
from fedrecgel.common.requests import EvaluateRequest, Experiment, download_of
from fedrecgel.common.state import State

FORMAT = "1"
FOLDER, FILE = "published", "model.safetensors"
SHARED, ADDRESSED, ITEMS, WHICH, KEYS = "shared/", "addressed/", "items", "which", "keys"


@dataclass(frozen=True, eq=False)
class Published:
    """A shared model and what it belongs to.

    Attributes
    ----------
    site
        Name of the site that wrote it.
    round
        The chosen round.
    items
        Item ids, in the order of the item rows.
    catalogue
        Hash of the catalogue (`Hello.catalogue`).
    threshold
        Rating from which a row of the site's file counts; None where every row does.
    addressed
        Tensors for particular users, (R, ...); empty for most algorithms, and the rest then too.
    which : (U,) int64
        Row in ``addressed`` of each of the site's users, -1 for none.
    keys : (U,) uint64
        Keys of these users.
    """

    experiment: Experiment
    site: str
    round: int
    items: list[str]
    shared: State
    catalogue: str = ""
    threshold: float | None = None
    addressed: State = field(default_factory=dict)
    which: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    keys: Keys = field(default_factory=lambda: np.zeros(0, dtype=np.uint64))

    @cached_property
    def algorithm(self) -> Algorithm[Any]:
        """The algorithm with the run's settings, computing on this machine's processor."""
        settings = {**self.experiment.settings, "device": "cpu"}
        config = make_config(self.experiment.algorithm, settings)
        return make_algorithm(config, self.experiment.num_items)

    @cached_property
    def _rows(self) -> dict[int, int]:
        return dict(zip(self.keys.tolist(), self.which.tolist(), strict=True))

    def download(self, user: str, shared: State) -> Download:
        """What a user of the site was sent, with ``shared`` (`Algorithm.prepared`) for the rest.

        Somebody who was not there gets nothing addressed, as a user who cannot train.
        """
        if not self.addressed:
            return Download(shared)
        row = self._rows.get(int(user_keys([user])[0]), -1)
        return Download(shared, self.addressed, torch.tensor([row])).take(torch.tensor([0]))


def published_file(state_folder: Path) -> Path:
    """Where a site's model is; it need not be there."""
    return state_folder / FOLDER / FILE


def publish(site: Site, request: EvaluateRequest) -> None:
    """Put the model of a final test in the place of the one before.

    Raises
    ------
    RunError
        When the file cannot be written; the model before is still there.
    """
    about = {
        "format": FORMAT,
        "experiment": request.experiment.key,
        "site": site.name,
        "round": str(request.round),
        "catalogue": site.catalogue,
        "threshold": json.dumps(site.data.manifest.source.get("threshold")),
    }
    ids = np.frombuffer("\0".join(site.data.item_ids.tolist()).encode(), dtype=np.uint8)
    tensors = {ITEMS: torch.from_numpy(ids.copy())}
    tensors |= {f"{SHARED}{name}": value.contiguous() for name, value in request.shared.items()}
    if request.addressed:
        for name, value in request.addressed.items():
            tensors[f"{ADDRESSED}{name}"] = value.contiguous()
        tensors[WHICH] = download_of(request).rows(len(site.users))
        keys = np.array(site.data.user_keys[site.users])
        tensors[KEYS] = torch.from_numpy(keys.view(np.int64))
    path = published_file(site.state_folder)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with alone(path.parent):
            _replace(path, save(tensors, about))
    except OSError as error:
        raise RunError(f"cannot publish the model to {path}: {error.strerror}") from None


def _replace(path: Path, content: bytes) -> None:
    """Write the file beside its place and move it there; one left by a killed process is lost."""
    temporary = path.with_name(f".{path.name}.new")
    file = os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _metadata(content: bytes) -> dict[str, str]:
    """What `safetensors.torch.load` leaves out: the header's texts."""
    length = int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return found


def load_published(state_folder: Path) -> Published:
    """The model that a site has now.

    Raises
    ------
    RunError
        When there is none yet, or the file is damaged or of another version.
    """
    path = published_file(state_folder)
    try:
        # In one go: a reader that opens the path twice may meet two models.
        content = path.read_bytes()
        tensors, about = load(content), _metadata(content)
    except FileNotFoundError:
        raise RunError(
            f"no model has been published in {state_folder} yet; the end of a run does it"
        ) from None
    except (OSError, SafetensorError) as error:
        raise RunError(f"{path} is damaged ({error}); the next run replaces it") from None
    if about.get("format") != FORMAT:
        raise RunError(f"{path} is of another version of fedrecgel; the next run replaces it")
    parts = [
        {n.removeprefix(part): value for n, value in tensors.items() if n.startswith(part)}
        for part in (SHARED, ADDRESSED)
    ]
    nobody = torch.zeros(0, dtype=torch.int64)
    return Published(
        Experiment.from_key(about["experiment"]),
        about["site"],
        int(about["round"]),
        tensors[ITEMS].numpy().tobytes().decode().split("\0"),
        catalogue=about["catalogue"],
        threshold=json.loads(about["threshold"]),
        shared=parts[0],
        addressed=parts[1],
        which=tensors.get(WHICH, nobody).numpy(),
        keys=tensors.get(KEYS, nobody).numpy().view(np.uint64),
    )
