"""What separate sites must agree on before they train together: items, and how data are prepared.

The server publishes a catalogue: the items' ids in order, and by which rules a site prepares its
own interactions. It says nothing about users. A site maps its items to the catalogue's; rows of
others are counted and left out. Everything random in a preparation is a hash of (seed, user id,
item id), so a site's rows and candidates are those that its users have in the data set that the
catalogue was made of.
"""

import hashlib
import json
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrecgel.common.data.arrays import by_name
from fedrecgel.common.data.build import build
from fedrecgel.common.data.candidates import NUM_CANDIDATES
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.data.filters import Minimum
from fedrecgel.common.data.manifest import Manifest, library_versions
from fedrecgel.common.data.read import Interactions
from fedrecgel.common.data.rules import DEFAULT_MINIMUM, TIES, Rules, describe_rules
from fedrecgel.common.data.sources import Source, open_source
from fedrecgel.common.data.store import write_data_set
from fedrecgel.common.data.synthetic import SyntheticSettings
from fedrecgel.common.errors import DataError
from fedrecgel.common.json_file import write_json

FORMAT = "fedrecgel-catalogue"
FORMAT_VERSION = 1
UNKNOWN = "rows_of_unknown_items"
"""Entry of a site's report: rows whose item is not in the catalogue."""


@dataclass(frozen=True, eq=False)
class Catalogue:
    """Items and rules that all sites of a federation share.

    Attributes
    ----------
    name
        Of the data set; chooses the preset's settings.
    item_ids : (M,)
        In the order of the item rows of the model.
    seed
        Of ties and candidates.
    num_candidates
        Drawn for each held-out item.
    min_interactions
        A site leaves out users with fewer, counted in items of the catalogue.
    threshold
        Where a site's file has ratings, rows with less do not count; None = every row does.
    """

    name: str
    item_ids: NDArray[np.str_]
    seed: int = 0
    num_candidates: int = NUM_CANDIDATES
    min_interactions: int = DEFAULT_MINIMUM
    threshold: float | None = None

    @classmethod
    def of(cls, data: Dataset) -> "Catalogue":
        """The catalogue under which the users of a data set, site by site, are prepared alike.

        Raises
        ------
        DataError
            When its rules need everybody's interactions at once.
        """
        if data.protocol != "default" or data.split != "leave-one-out":
            raise DataError(
                f"{data.name} was prepared by protocol {data.protocol} with split {data.split}; "
                "sites of their own can only follow protocol default with leave-one-out"
            )
        ties = data.manifest.rules.get("ties", TIES["hash"])
        if ties != TIES["hash"]:
            raise DataError(
                f"{data.name} was prepared with ties by the order of its file ({ties}); sites of "
                "their own have files of their own: prepare it with --ties hash"
            )
        held_out = (data.validation_items >= 0).astype(int) + (data.test_items >= 0)
        fewest = int((np.diff(data.train_offsets) + held_out).min(initial=2**31))
        # A filter of items may leave users fewer interactions than the users' own minimum.
        least = min(int(str(data.manifest.rules.get("min_interactions", fewest))), fewest)
        threshold = data.manifest.source.get("threshold")
        return cls(
            data.name,
            np.asarray(data.item_ids),
            data.manifest.seed,
            data.test_candidates.shape[1],
            least,
            float(threshold) if isinstance(threshold, int | float) else None,
        )

    @property
    def rules(self) -> dict[str, object]:
        """What is not items, by name."""
        return {
            "protocol": "default",
            "split": "leave-one-out",
            "seed": self.seed,
            "num_candidates": self.num_candidates,
            "min_interactions": self.min_interactions,
            "threshold": self.threshold,
        }

    @cached_property
    def hash(self) -> str:
        """sha256 over items and rules."""
        digest = hashlib.sha256(json.dumps(self.rules, sort_keys=True).encode())
        digest.update(b"\x00" + "\x00".join(self.item_ids.tolist()).encode())
        return digest.hexdigest()

    def save(self, path: str | Path) -> None:
        """Write it as one JSON file."""
        head = {"format": FORMAT, "format_version": FORMAT_VERSION, "name": self.name}
        target = Path(path)
        try:
            write_json(
                target,
                {**head, "hash": self.hash, "rules": self.rules, "items": self.item_ids.tolist()},
            )
        except OSError as error:
            raise DataError(f"cannot write {target}: {error.strerror or error}") from None

    @classmethod
    def load(cls, path: str | Path) -> "Catalogue":
        """Read what `save` wrote.

        Raises
        ------
        DataError
            When the file is missing, damaged or of another format.
        """
        file = Path(path)
        make = "fedrecgel deploy makes one from a prepared data set"
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"catalogue {file} cannot be read ({error.strerror}); {make}") from None
        except ValueError:
            raise DataError(f"{file} is not JSON, so no catalogue; {make}") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise DataError(f"{file} is not a catalogue; {make}")
        if content.get("format_version") != FORMAT_VERSION:
            raise DataError(
                f"catalogue {file} has format version {content.get('format_version')}, this "
                f"version reads {FORMAT_VERSION}; make it anew"
            )
        try:
            found = cls.from_rules(content["name"], content["rules"], content["items"])
        except (KeyError, TypeError, ValueError):
            found = None
        if found is None or found.hash != content.get("hash"):
            raise DataError(f"catalogue {file} is damaged: its hash differs; make it anew")
        return found

    @classmethod
    def from_rules(cls, name: str, rules: dict[str, object], items: list[str]) -> "Catalogue":
        """Put together again what `rules` and the item ids say."""
        values = {key: rules[key] for key in ("seed", "num_candidates", "min_interactions")}
        whole = {key: int(str(value)) for key, value in values.items()}
        threshold = rules["threshold"]
        limit = None if threshold is None else float(str(threshold))
        if len(set(items)) != len(items) or not items:
            raise ValueError("items are missing or named twice")
        found = cls(str(name), np.array(items, dtype=np.str_), **whole, threshold=limit)
        if found.rules != rules:
            raise ValueError("other rules than this version knows")
        return found


def site_dataset(catalogue: Catalogue, interactions: str | Path, folder: str | Path) -> Dataset:
    """Prepare a site's own interactions with the catalogue's items and rules.

    Parameters
    ----------
    interactions
        The site's file: user, item and, if there is one, a time; see `fedrecgel.prepare`.
    folder
        Where to write the prepared data set; what is there is replaced.

    Raises
    ------
    DataError
        In one line, when the file cannot be used: missing, empty, or without an item that the
        catalogue knows.
    """
    source = read_own(interactions, catalogue.threshold)
    known, unknown = _known(source, catalogue)
    minimum = Minimum(catalogue.min_interactions)
    rules = Rules("default", catalogue.seed, minimum, catalogue.num_candidates)
    built = build(known, rules, whole_catalogue=True)
    manifest = Manifest(
        name=catalogue.name,
        protocol="default",
        seed=catalogue.seed,
        source={
            **known.facts,
            "catalogue": catalogue.hash,
            "threshold": catalogue.threshold,
        },
        rules=describe_rules(rules, known, None),
        statistics=built.statistics,
        report={**built.report, UNKNOWN: unknown},
        versions=library_versions(),
    )
    target = Path(folder)
    write_data_set(target, manifest, by_name(built.arrays), built.tables, overwrite=True)
    return Dataset.load(target)


def read_own(interactions: str | Path, threshold: float | None) -> Source:
    """Read a site's own file; rows below the threshold do not count, where there are ratings.

    Raises
    ------
    DataError
        When it is missing or cannot be read.
    """
    path, nothing = Path(interactions), SyntheticSettings()
    if not path.exists():
        raise DataError(f"no interactions at {path}; is the file mounted there?")
    try:
        source = open_source(path, {}, None, False, nothing, 0)
        columns = source.interactions.report["columns"]
        if threshold is not None and isinstance(columns, dict) and "rating" in columns:
            source = open_source(path, {}, threshold, False, nothing, 0)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from None
    except DataError as error:
        # Sites have no options for it: a file of theirs is one that needs none.
        line, option, _ = str(error).partition("; set --")
        needs = "; name its columns user, item and time in line 1, with commas" if option else ""
        raise DataError(line + needs) from None
    return replace(source, threshold=threshold)


def _known(source: Source, catalogue: Catalogue) -> tuple[Source, int]:
    """Rows with items of the catalogue, numbered as there; and how many others there were."""
    raw = source.interactions
    order = np.argsort(catalogue.item_ids)
    place = np.searchsorted(catalogue.item_ids, raw.item_ids, sorter=order)
    place = order[np.minimum(place, len(order) - 1)]
    numbers = np.where(catalogue.item_ids[place] == raw.item_ids, place, -1)
    item = numbers[raw.events.item]
    known = item >= 0
    if not known.any():
        raise DataError(
            f"{source.facts['file']}: none of its {len(raw.item_ids):,} items is in the catalogue "
            f"of {catalogue.name} (it has ids like {str(catalogue.item_ids[0])!r}, the file "
            f"{str(raw.item_ids[0])!r})"
        )
    events = replace(raw.events, item=item).take(known)
    found = Interactions(events, raw.user_ids, catalogue.item_ids, raw.report)
    return replace(source, interactions=found), int((~known).sum())
