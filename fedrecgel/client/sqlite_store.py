"""Private state of a deployed site: one SQLite file."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrecgel.client.sealing import read_key
from fedrecgel.common.interactions import Ints
from fedrecgel.common.state import State

__all__ = ["SqliteStore", "read_key"]


class SqliteStore:
    """`PrivateStore` of one experiment in the SQLite file of a site.

    Parameters
    ----------
    path
        The file; made (mode 0600) when it is not there.
    experiment
        Id of the run.
    site
        Name of the site; a file belongs to one.
    user_ids
        Id of the user at each position.
    template
        One user's private state; gives names, shapes and types.
    key
        From `read_key`; encrypts states and hides user ids.
    about
        What is known of the experiment (`Experiment.key`), for exports.
    read_only
        Neither makes nor changes nor locks anything; for readers beside the owner (serving).
    """

    def __init__(
        self,
        path: Path,
        experiment: str,
        site: str,
        user_ids: Sequence[str],
        template: State,
        key: bytes | None = None,
        *,
        about: str = "",
        read_only: bool = False,
    ) -> None:
        raise NotImplementedError

    def trained(self, users: Ints, rounds: Ints) -> NDArray[np.bool_]:
        """(B,) who goes on from a kept state: not round 0, nor somebody who was forgotten."""
        raise NotImplementedError

    def load(self, users: Ints, rounds: Ints) -> State:
        """See `PrivateStore.load`."""
        raise NotImplementedError

    def save(self, users: Ints, kept: Ints, round: int, state: State) -> None:
        """See `PrivateStore.save`."""
        raise NotImplementedError

    def latest(self, users: Ints) -> Ints:
        """See `PrivateStore.latest`."""
        raise NotImplementedError

    def finish(self, users: Ints, rounds: Ints, ranks: Ints) -> None:
        """See `PrivateStore.finish`."""
        raise NotImplementedError

    def load_chosen(self, users: Ints) -> tuple[State, NDArray[np.bool_]]:
        """States of the chosen round, of those users that had been trained, and which they were."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file; another process may own it then."""
        raise NotImplementedError
