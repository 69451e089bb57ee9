"""A finished run: its numbers, its model, recommendations for its users and for new ones."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrecgel.client.published import Published
from fedrecgel.client.store import ArrayStore
from fedrecgel.common.algorithms.base import Algorithm, Download, ServerState
from fedrecgel.common.algorithms.fit import fit_private
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.algorithms.view import GroupedView, users_at_once
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, DataError, RunError
from fedrecgel.common.evaluation import ItemLists, PersonalView, top_k
from fedrecgel.common.hashing import user_keys
from fedrecgel.common.interactions import Interactions, Ints
from fedrecgel.common.requests import Experiment
from fedrecgel.common.state import State
from fedrecgel.server.run_folder import CONFIG, RESULT, RunFolder
from fedrecgel.simulation.personal import PersonalModel
from fedrecgel.simulation.report import NAMES, build_report, several_report
from fedrecgel.simulation.sanity import LEAKY
from fedrecgel.simulation.table import table

MODELS = {
    "kept": "private parameters as the chosen round found them",
    "fitted": "private parameters after {rounds} against the shared ones",
}
"""Which model `Result.evaluate` measures."""


@dataclass(frozen=True)
class Recommendation:
    """One item of a list, best first."""

    item: str
    score: float


class Result:
    """A finished run; open one with `Result.open`.

    Attributes
    ----------
    values
        The content of ``result.json``.
    """

    def __init__(self, folder: RunFolder, head: dict[str, Any], values: dict[str, Any]) -> None:
        self.path = folder.path
        self.values = values
        self._folder = folder
        self._head = head

    @classmethod
    def open(cls, path: str | Path) -> "Result":
        """Read a run folder.

        Raises
        ------
        RunError
            When it is not one, did not finish, or is damaged.
        """
        folder = RunFolder.open(Path(path))
        return cls(folder, folder.read_json(CONFIG), folder.read_json(RESULT))

    @property
    def round(self) -> int:
        """The chosen round."""
        return int(self.values["round"]["chosen"])

    def metric(self, name: str) -> float:
        """A test metric, for example ``full.ndcg@10`` or ``sampled.hr@10``."""
        ranking, _, metric = name.partition(".")
        return float(self.values["test"][ranking][metric]["value"])

    def table(self) -> str:
        """The numbers as text."""
        return table(self.values)

    @cached_property
    def data(self) -> Dataset:
        """The data set of the run.

        Raises
        ------
        DataError
            When it is not what it was, or the users' data never were on this machine.
        """
        wanted = self._head.get("data")
        if wanted is None:
            raise DataError(
                f"{self.path} is the server's part of a run at sites with files of their own; "
                "recommend and serve where these are: fedrecgel serve --state DIR "
                "--interactions FILE"
            )
        data = Dataset.load(wanted["path"])
        if data.hash != wanted["hash"]:
            raise DataError(
                f"{wanted['path']} is not the data set of this run any more (its hash is "
                f"{data.hash[:12]}, the run's {wanted['hash'][:12]}); prepare it again as it was"
            )
        return data

    @cached_property
    def algorithm(self) -> Algorithm[Any]:
        """The algorithm with the run's settings."""
        config = make_config(self._head["algorithm"], self._head["settings"])
        return make_algorithm(config, self.data.num_items)

    @cached_property
    def server(self) -> ServerState:
        """The server's tensors of the chosen round."""
        return self._folder.read_model()

    @property
    def shared(self) -> State:
        """Shared tensors of the chosen round."""
        return self.server.shared

    def published(self) -> Published:
        """The run's model as sites keep it, for all users of the data set."""
        head, data = self._head, self.data
        experiment = Experiment(
            head["experiment"], head["algorithm"], head["settings"], data.num_items, data.hash
        )
        download = self._download(np.arange(data.num_users))
        return Published(
            experiment,
            "all users",
            self.round,
            data.item_ids.tolist(),
            self.shared,
            data.hash,
            addressed=download.addressed,
            which=download.rows(data.num_users).numpy(),
            keys=data.user_keys,
        )

    def recommend(self, user: str, k: int = 10, *, repeat: bool = False) -> list[Recommendation]:
        """The ``k`` best items for a user of the data set.

        Nothing that the user has interacted with (train, validation, test) is recommended unless
        ``repeat``.
        """
        index = np.array([self.data.user_index(user)])
        seen = [] if repeat else self._known_items(int(index[0]))
        return self._best(self.view(index), seen, k)

    def personal_model(self, user: str) -> PersonalModel:
        """Everything that this user's device would hold; `PersonalModel.save` writes it."""
        index = np.array([self.data.user_index(user)])
        private = {name: value[0] for name, value in self._private(index).items()}
        items = [str(item) for item in self.data.item_ids]
        own = self._download(index).user(0)
        addressed = {name: value for name, value in own.items() if name not in self.shared}
        return PersonalModel(self.algorithm, items, private, self.shared, addressed)

    def recommend_new(self, items: Sequence[str], k: int = 10) -> list[Recommendation]:
        """The ``k`` best items for somebody new, who has interacted with ``items``.

        A private state is fitted here, against the frozen shared model; nothing is sent or kept.
        """
        known = np.unique(self.data.items_of(items)).astype(np.int64)
        if not len(known):
            raise DataError("a new user needs at least one item of the catalogue")
        data = Interactions(
            known, np.array([0, len(known)]), user_keys(["new user"]), self.data.num_items
        )
        private = fit_private(self.algorithm, Download(self.shared), data)
        view = self.algorithm.personal_view(Download(self.shared), private)
        return self._best(view, known.tolist(), k)

    def evaluate(
        self,
        split: str = "test",
        *,
        names: Iterable[str] = NAMES,
        fitted: bool = False,
    ) -> dict[str, Any]:
        """Measure the run's model again, from its files, as `build_report` does.

        As in the run, users with nothing to train on are not evaluated.

        Parameters
        ----------
        names
            Metrics to report, any kind at any k.
        fitted
            Measure another model: each user's private state is first fitted to the final shared
            parameters (`Algorithm.fit_rounds`), as a new user's is; nothing is sent or kept. By
            default users have the private parameters that the chosen round found them with, which
            may be old, or the initial ones.
        """
        trained = self.store().chosen(np.arange(self.data.num_users)) > 0
        users = np.flatnonzero(np.diff(self.data.train_offsets) > 0)
        report = build_report(
            self.data,
            self._fitted_view(users) if fitted else self.view(users),
            split=split,
            trained_users=trained,
            trained_items=np.ones(self.data.num_items, dtype=bool),
            users=users,
            names=names,
        )
        count = self.algorithm.fit_rounds
        rounds = "1 more local round" if count == 1 else f"{count} more local rounds"
        report["model"] = MODELS["fitted" if fitted else "kept"].format(rounds=rounds)
        if self.algorithm.config.negatives == "leaky":
            report["warnings"].insert(0, LEAKY)
        # Which item rows were trained is not kept, only what the run counted on the test items.
        items = self.values["items"]
        known = items.keys() if split == "test" else {"all", "never_trained"}
        report["items"] = {name: items[name] if name in known else None for name in items}
        return report

    def _fitted_view(self, users: Ints) -> PersonalView:
        data, after = self.data, self.values["round"]["trained"]
        offsets = np.asarray(data.train_offsets, dtype=np.int64)
        everyone = Interactions(data.train_items, offsets, data.user_keys, data.num_items)

        def fitted(group: Ints) -> PersonalView:
            download, private = self._download(group), self._private(group)
            known = everyone.take(group)
            private = fit_private(self.algorithm, download, known, private, after=after)
            return self.algorithm.personal_view(download, private)

        return self._in_groups(users, fitted)

    def measure_several(self) -> None:
        """Add the metrics of all held-out items to ``result.json``, where users have several.

        Nodes send sums over the next item of each user; the lists need every user's scores, which
        only a machine with all private state has.
        """
        users = np.flatnonzero(np.diff(self.data.train_offsets) > 0)
        self.values["several"] = several_report(self.data, self.view(users), "test", users)
        self._folder.write_json(RESULT, self.values)

    def view(self, users: Ints) -> PersonalView:
        """Scores for users of the data set, by index."""

        def kept(group: Ints) -> PersonalView:
            return self.algorithm.personal_view(self._download(group), self._private(group))

        return self._in_groups(users, kept)

    def _in_groups(self, users: Ints, make: Callable[[Ints], PersonalView]) -> PersonalView:
        """One view where all users' state fits in memory, else one that makes it as it goes."""
        size = users_at_once(self.algorithm)
        if len(users) <= size:
            return make(users)
        return GroupedView(users, self.data.num_items, size, make)

    def _download(self, users: Ints) -> Download:
        """What the server has for users of the data set; the roster counts those who can train."""
        can = np.diff(self.data.train_offsets) > 0
        numbers = np.where(can, np.cumsum(can) - 1, -1)[users]
        return self.algorithm.evaluation_download(self.server, torch.from_numpy(numbers))

    def _private(self, users: Ints) -> State:
        kept, found = self.store().load_chosen(users)
        return self.algorithm.fill_private(self.data.user_keys[users], kept, found)

    def store(self) -> ArrayStore:
        """Private state of the users, by data set index."""
        if not (self._folder.private / "store.json").is_file():
            raise RunError(
                f"{self._folder.private} is missing: private state was removed; run again"
            )
        return ArrayStore(
            self._folder.private,
            self._head["experiment"],
            self.data.num_users,
            self.algorithm.private_template,
            create=False,
        )

    def _known_items(self, user: int) -> list[int]:
        known = set(self.data.train_of(user).tolist())
        for split in ("validation", "test"):
            items, offsets = self.data.held_out(split)
            known.update(items[offsets[user] : offsets[user + 1]].tolist())
        return sorted(known)

    def _best(self, view: PersonalView, seen: Sequence[int], k: int) -> list[Recommendation]:
        if k < 1:
            raise ConfigError(f"k must be at least 1, not {k}")
        excluded = ItemLists(np.array(seen, dtype=np.int64), np.array([0, len(seen)]))
        best = top_k(view, np.array([0]), k, excluded)[0]
        scores = view.catalogue(torch.zeros(1, dtype=torch.int64))[0]
        chosen = [int(item) for item in best if item >= 0]
        return [Recommendation(str(self.data.item_ids[i]), float(scores[i])) for i in chosen]
