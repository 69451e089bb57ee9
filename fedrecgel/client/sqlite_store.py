"""Private state of a deployed site: one SQLite file that outlasts every crash.

Who was forgotten is gone from the file, but the server goes on naming the rounds from before. Such
a user starts anew: a named round that is older than all that the file knows of a user counts as the
initial state, if anybody was forgotten in this experiment. How many were is the only trace. Without
that count whatever is missing is lost, and an error.
"""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedrecgel.client.sealing import Damaged, Seal, read_key
from fedrecgel.client.sqlite_file import WAIT, SqliteFile
from fedrecgel.client.state_layout import StateLayout
from fedrecgel.client.store import RANK_FIELDS
from fedrecgel.common.errors import RunError
from fedrecgel.common.interactions import Ints
from fedrecgel.common.state import State

__all__ = ["KEEP_EXPERIMENTS", "SqliteStore", "read_key"]

KEEP_EXPERIMENTS = 5
"""Experiments whose state stays, by last use; the one that finished last stays besides."""

RANKS = 0
"""Stands for a round where ranks are sealed; no state has it."""


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
    wait
        Seconds to wait for another owner.

    Raises
    ------
    RunError
        When the file is another's, damaged, owned by another process, or the key does not fit.
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
        wait: float = WAIT,
    ) -> None:
        self._experiment, self._user_ids, self._about = experiment, user_ids, about
        self._layout = StateLayout(
            {name: (tuple(v.shape), v.numpy().dtype.str) for name, v in template.items()}
        )
        self._file = SqliteFile(
            path, site, key, create=not read_only, read_only=read_only, wait=wait
        )
        self._seal = self._file.seal(experiment)
        try:
            self._refuse_other_template(read_only)
        except RunError:
            self.close()
            raise

    def _refuse_other_template(self, must_exist: bool) -> None:
        with self._file.reading() as connection:
            found = connection.execute(
                "SELECT template FROM experiments WHERE id = ?", (self._experiment,)
            ).fetchone()
        if found is None and must_exist:
            raise RunError(f"{self._file.path} holds nothing of experiment {self._experiment}")
        if found is None:
            return
        layout = read_layout(self._file, found[0])
        if layout != self._layout:
            raise RunError(
                f"{self._file.path} holds other tensors for experiment {self._experiment} "
                f"({layout.to_text()}); is it another algorithm or setting under the same id?"
            )

    def trained(self, users: Ints, rounds: Ints) -> NDArray[np.bool_]:
        """See `PrivateStore.trained`."""
        named = np.asarray(rounds) > 0
        with self._file.reading() as connection:
            experiment, forgotten = self._find()
            if not forgotten:
                return named
            for place in np.flatnonzero(named):
                user, round = self._user(users[place]), int(rounds[place])
                key = (experiment, user, round)
                if connection.execute(_HELD, key).fetchone():
                    continue
                since = connection.execute(
                    "SELECT since FROM users WHERE experiment = ? AND user = ?", key[:2]
                ).fetchone()
                named[place] = since is not None and since[0] is not None and since[0] <= round
        return named

    def load(self, users: Ints, rounds: Ints) -> State:
        """See `PrivateStore.load`."""
        rows = np.empty((len(users), self._layout.size), dtype=np.uint8)
        missing = 0
        with self._file.reading() as connection:
            experiment, _ = self._find()
            for row, position, round in zip(rows, users, rounds.tolist(), strict=True):
                user = self._user(position)
                found = connection.execute(
                    "SELECT state FROM states WHERE experiment = ? AND user = ? AND round = ?",
                    (experiment, user, round),
                ).fetchone()
                if found is None:
                    missing += 1
                else:
                    row[:] = unseal(self._file, self._seal, found[0], user, round)
        if missing:
            raise RunError(
                f"private state of {missing} of {len(users)} users is not in {self._file.path} for "
                "the round the server asks for; was the store replaced, or another run started on "
                "it?"
            )
        return self._layout.unpack(rows)

    def save(self, users: Ints, kept: Ints, round: int, state: State) -> None:
        """See `PrivateStore.save`."""
        assert round > 0, "round 0 is the initial state"
        rows = self._layout.pack(state, len(users))
        names = [self._user(position) for position in users]
        needed = np.asarray(kept).T.tolist()
        marks = ", ".join("?" * len(kept))
        with self._file.writing() as connection:
            experiment = self._enter()
            # First away with the old, so that the new takes its pages while they are in memory.
            connection.executemany(
                "DELETE FROM states WHERE experiment = ? AND user = ? "
                f"AND (round = ? OR round NOT IN ({marks}))",
                ((experiment, u, round, *k) for u, k in zip(names, needed, strict=True)),
            )
            connection.executemany(
                "INSERT INTO states VALUES (?, ?, ?, ?)",
                (
                    (experiment, user, round, self._seal.close(row.data, user, round))
                    for user, row in zip(names, rows, strict=True)
                ),
            )
            connection.executemany(
                "INSERT INTO users (experiment, user, since) VALUES (?, ?, ?) "
                "ON CONFLICT DO UPDATE SET since = excluded.since "
                "WHERE since IS NULL OR since > excluded.since",
                ((experiment, user, round) for user in names),
            )

    def latest(self, users: Ints) -> Ints:
        """See `PrivateStore.latest`."""
        with self._file.reading() as connection:
            experiment, _ = self._find()
            found = [
                connection.execute(
                    "SELECT max(round) AS last FROM states WHERE experiment = ? AND user = ?",
                    (experiment, self._user(position)),
                ).fetchone()[0]
                for position in users
            ]
        return np.array([round or 0 for round in found], dtype=np.int64)

    def finish(self, users: Ints, rounds: Ints, ranks: Ints) -> None:
        """See `PrivateStore.finish`."""
        with self._file.writing() as connection:
            chosen = np.where(self.trained(users, rounds), rounds, 0).tolist()
            experiment = self._enter()
            connection.execute(
                "UPDATE experiments SET finished = saved WHERE number = ?", (experiment,)
            )
            notes = np.ascontiguousarray(ranks, dtype="<i8")
            for position, round, note in zip(users, chosen, notes, strict=True):
                user = self._user(position)
                sealed = self._seal.close(note.tobytes(), user, RANKS)
                connection.execute(
                    "INSERT INTO users VALUES (?, ?, NULL, ?, ?) ON CONFLICT DO UPDATE "
                    "SET chosen = excluded.chosen, ranks = excluded.ranks",
                    (experiment, user, round, sealed),
                )

    def load_chosen(self, users: Ints) -> tuple[State, NDArray[np.bool_]]:
        """States of the chosen round, of those users that had been trained, and which they were."""
        with self._file.reading():
            rounds = np.array([note[0] for note in self._notes(users)], dtype=np.int64)
            found = rounds > 0
            return self.load(users[found], rounds[found]), found

    def load_ranks(self, users: Ints) -> Ints:
        """(B, `RANK_FIELDS`) what the last test found about each user, or -1."""
        ranks = np.full((len(users), RANK_FIELDS), -1, dtype=np.int64)
        with self._file.reading():
            for row, position, (_, sealed) in zip(ranks, users, self._notes(users), strict=True):
                if sealed is not None:
                    user = self._user(position)
                    data = unseal(self._file, self._seal, sealed, user, RANKS)
                    row[:] = np.frombuffer(data, dtype="<i8")
        return ranks

    def _notes(self, users: Ints) -> list[tuple[int, bytes | None]]:
        """Chosen round and sealed ranks of each user."""
        experiment, _ = self._find()
        rows = (
            self._file.connection.execute(
                "SELECT chosen, ranks FROM users WHERE experiment = ? AND user = ?",
                (experiment, self._user(position)),
            ).fetchone()
            for position in users
        )
        return [(row[0] or 0, row[1]) if row else (0, None) for row in rows]

    def _user(self, position: np.int64) -> str | bytes:
        return self._seal.user(self._user_ids[int(position)])

    def _find(self) -> tuple[int | None, int]:
        """Number of the experiment in the file (``None``: nothing yet), and how many forgotten."""
        found = self._file.connection.execute(
            "SELECT number, forgotten FROM experiments WHERE id = ?", (self._experiment,)
        ).fetchone()
        return found or (None, 0)

    def _enter(self) -> int:
        """Number of the experiment, entered now if need be; old experiments leave for a new one."""
        execute = self._file.connection.execute
        number: int = execute(
            "INSERT INTO experiments (id, template, about, saved) VALUES (?, ?, ?, ?) "
            "ON CONFLICT DO UPDATE SET saved = excluded.saved RETURNING number",
            (self._experiment, self._layout.to_text(), self._about, time.time()),
        ).fetchone()[0]
        old = execute(
            "SELECT number FROM experiments WHERE number != ? AND number NOT IN "
            "(SELECT number FROM experiments WHERE finished IS NOT NULL "
            "ORDER BY finished DESC, number DESC LIMIT 1) "
            "ORDER BY saved DESC, number DESC LIMIT -1 OFFSET ?",
            (number, KEEP_EXPERIMENTS - 1),
        ).fetchall()
        for one in old:
            self._file.drop(*one)
        return number

    def close(self) -> None:
        """Close the file; another process may own it then."""
        self._file.close()


def read_layout(file: SqliteFile, text: str) -> StateLayout:
    """The layout of a template in the file; damage is a `RunError`."""
    try:
        return StateLayout.from_text(text)
    except ValueError:
        raise file.damage("a template is not what was saved") from None


_HELD = "SELECT 1 FROM states WHERE experiment = ? AND user = ? AND round = ?"


def unseal(
    file: SqliteFile, seal: Seal, data: bytes, user: str | bytes, round: int
) -> NDArray[np.uint8]:
    """The bytes that were sealed; damage is a `RunError`."""
    try:
        return np.frombuffer(seal.open(data, user, round), dtype=np.uint8)
    except Damaged:
        raise file.damage("a state is not what was saved") from None
