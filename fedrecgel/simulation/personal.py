"""One user's model in one file: their private tensors, the shared ones, and the item ids.

It is what that user's device would hold. Whoever has the file can score items with it, without the
run, the data set or anybody else's state.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from fedrecgel.common.algorithms.base import Algorithm, Download
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.errors import DataError, RunError
from fedrecgel.common.state import State

FORMAT = "1"


class PersonalModel:
    """A user's own model.

    Attributes
    ----------
    items
        Item ids by index.
    private, shared, addressed
        The tensors that `fedrecgel.common.state.Tensors` calls so; all but the shared ones of one
        user.
    """

    def __init__(
        self,
        algorithm: Algorithm[Any],
        items: Sequence[str],
        private: State,
        shared: State,
        addressed: State | None = None,
    ) -> None:
        self.algorithm = algorithm
        self.items = list(items)
        self.private = private
        self.shared = shared
        self.addressed = addressed or {}

    def score(self, items: Sequence[str]) -> list[float]:
        """Scores of items by id, as in the run.

        Raises
        ------
        DataError
            When an item is not in the catalogue.
        """
        places = {item: place for place, item in enumerate(self.items)}
        unknown = [item for item in items if item not in places]
        if unknown:
            raise DataError(f"no item '{unknown[0]}' among the {len(places):,} items of the model")
        stacked = {name: value.unsqueeze(0) for name, value in self.private.items()}
        addressed = {name: value.unsqueeze(0) for name, value in self.addressed.items()}
        view = self.algorithm.personal_view(Download(self.shared, addressed), stacked)
        chosen = torch.tensor([[places[item] for item in items]])
        return [
            float(score) for score in view.candidates(torch.zeros(1, dtype=torch.int64), chosen)[0]
        ]

    def save(self, path: str | Path) -> None:
        """Write the file, for its owner to read only."""
        path = Path(path)
        config = self.algorithm.config
        about = {
            "format": FORMAT,
            "algorithm": config.algorithm,
            "settings": json.dumps(config.to_flat()),
            "items": json.dumps(self.items),
        }
        tensors = {f"private/{name}": value for name, value in self.private.items()}
        tensors |= {f"shared/{name}": value for name, value in self.shared.items()}
        tensors |= {f"addressed/{name}": value for name, value in self.addressed.items()}
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600))
            save_file({n: v.contiguous() for n, v in tensors.items()}, temporary, metadata=about)
            os.chmod(temporary, 0o600)
            os.replace(temporary, path)
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from None
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> "PersonalModel":
        """Read a file that `save` wrote."""
        try:
            with safe_open(path, "pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise RunError(f"{path} is not a personal model ({error})") from None
        if about.get("format") != FORMAT:
            raise RunError(f"{path} is not a personal model of format {FORMAT}; export it again")
        items = json.loads(about["items"])
        config = make_config(about["algorithm"], json.loads(about["settings"]))
        parts = [
            {
                name.removeprefix(part): value
                for name, value in tensors.items()
                if name.startswith(part)
            }
            for part in ("private/", "shared/", "addressed/")
        ]
        return cls(make_algorithm(config, len(items)), items, *parts)
