"""What is in a site's private store, for those who keep it and those who are in it."""

import json
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import safetensors.torch

from fedrecgel.client.sqlite_damage import means_damage
from fedrecgel.client.sqlite_file import SqliteFile
from fedrecgel.client.sqlite_store import read_layout, unseal
from fedrecgel.client.state_folder import STORE, state_folders
from fedrecgel.common.errors import RunError
from fedrecgel.common.target import refuse_inside, refuse_replacing


class NothingHeld(RunError):
    """The file knows nothing of a user."""


@dataclass(frozen=True)
class Listed:
    """One experiment in the file.

    Attributes
    ----------
    algorithm
        Empty when it is not known.
    users
        How many have a state.
    rounds
        First and last round of a kept state; (0, 0) = none.
    states
        How many states are kept.
    bytes
        Their size in the file.
    chosen
        For how many users a chosen round is noted.
    forgotten
        How many users were forgotten.
    saved, finished
        Time (UTC, ISO 8601) of the last save, and of the final test or ``None``.
    """

    experiment: str
    algorithm: str
    users: int
    rounds: tuple[int, int]
    states: int
    bytes: int
    chosen: int
    forgotten: int
    saved: str
    finished: str | None


def list_experiments(file: SqliteFile) -> list[Listed]:
    """The experiments, the latest first."""
    with file.reading() as connection:
        rows = connection.execute(
            """SELECT id, about, forgotten, saved, finished,
            count(DISTINCT s.user), min(s.round) AS first, max(s.round) AS last, count(s.user),
            coalesce(sum(length(s.state)), 0),
            (SELECT count(*) FROM users u WHERE u.experiment = e.number AND u.chosen > 0)
            FROM experiments e LEFT JOIN states s ON s.experiment = e.number
            GROUP BY e.number ORDER BY saved DESC, e.number DESC"""
        ).fetchall()
    return [_listed(*row) for row in rows]


def _listed(
    experiment: str,
    about: str,
    forgotten: int,
    saved: float,
    finished: float | None,
    users: int,
    first: int | None,
    last: int | None,
    states: int,
    size: int,
    chosen: int,
) -> Listed:
    return Listed(
        experiment,
        str(_about(about).get("algorithm", "")),
        users,
        (first or 0, last or 0),
        states,
        size,
        chosen,
        forgotten,
        _time(saved),
        None if finished is None else _time(finished),
    )


@dataclass(frozen=True)
class Held:
    """One user's states in one experiment; ``chosen`` 0 = no round is chosen."""

    experiment: str
    rounds: list[int]
    chosen: int


def list_user(file: SqliteFile, user_id: str) -> list[Held]:
    """What the file holds of a user, the experiment used last first.

    Raises
    ------
    NothingHeld
        When it holds nothing.
    """
    found = []
    with file.reading() as connection:
        experiments = connection.execute(
            "SELECT number, id FROM experiments ORDER BY saved DESC, number DESC"
        ).fetchall()
        for number, name in experiments:
            key = (number, file.seal(name).user(user_id))
            rounds = connection.execute(
                "SELECT round FROM states WHERE experiment = ? AND user = ? ORDER BY round", key
            ).fetchall()
            noted = connection.execute(
                "SELECT chosen FROM users WHERE experiment = ? AND user = ?", key
            ).fetchone()
            if rounds or noted:
                chosen = noted[0] if noted else 0
                found.append(Held(name, [round for (round,) in rounds], chosen or 0))
    if not found:
        raise NothingHeld(f"{file.path} holds nothing of user '{user_id}'")
    return found


def export_user(
    file: SqliteFile,
    user_id: str,
    out: Path,
    experiment: str | None = None,
    round: int | None = None,
) -> dict[str, str]:
    """Write a user's private tensors to a safetensors file (mode 0600), not where the store lies.

    Parameters
    ----------
    experiment
        Default: the one used last that holds a state of the user.
    round
        Default: the chosen one, else the latest.

    Returns
    -------
    dict
        The metadata of the file.
    """
    _refuse_own(file, out)
    held = [one for one in list_user(file, user_id) if one.rounds]
    if experiment is not None:
        held = [one for one in held if one.experiment == experiment]
    if not held:
        where = "" if experiment is None else f" in experiment {experiment}"
        raise RunError(f"{file.path} holds no state of user '{user_id}'{where}")
    of = held[0]
    if round is None:
        round = of.chosen if of.chosen in of.rounds else of.rounds[-1]
    if round not in of.rounds:
        known = ", ".join(map(str, of.rounds))
        raise RunError(f"{file.path} holds rounds {known} of user '{user_id}', not {round}")
    seal = file.seal(of.experiment)
    user = seal.user(user_id)
    with file.reading():
        template, about, state = file.one(
            "SELECT template, about, state FROM experiments e JOIN states s "
            "ON s.experiment = e.number WHERE id = ? AND user = ? AND round = ?",
            (of.experiment, user, round),
        )
    rows = np.array(unseal(file, seal, state, user, round))[None]
    layout = read_layout(file, template)
    if layout.size != rows.shape[1]:
        raise file.damage("a template is not that of its states")
    tensors = layout.unpack(rows)
    metadata = {
        "format": "fedrecgel-private-state 1",
        "user": user_id,
        "site": file.site,
        "experiment": of.experiment,
        "round": str(round),
        "about": json.dumps(_about(about), sort_keys=True),
    }
    content = safetensors.torch.save({name: value[0] for name, value in tensors.items()}, metadata)
    _write(out, content)
    return metadata


def back_up(file: SqliteFile, out: Path) -> None:
    """Copy the file as it is at one moment, whatever the owner writes meanwhile (mode 0600).

    Raises
    ------
    RunError
        When the store is damaged, or ``out`` lies where a store does or cannot be written; an older
        copy there stays.
    """
    _refuse_own(file, out)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        with closing(sqlite3.connect(temporary)) as copy:
            copy.row_factory = file.connection.row_factory
            file.connection.backup(copy)
            _refuse_damage(file, copy)
        os.replace(temporary, out)
    except (OSError, sqlite3.Error, UnicodeDecodeError) as error:
        if means_damage(error):
            raise _damage(file, str(error)) from None
        reason = error.strerror if isinstance(error, OSError) else error
        raise RunError(f"{out} cannot be written: {reason}") from None
    finally:
        temporary.unlink(missing_ok=True)


def _refuse_damage(file: SqliteFile, copy: sqlite3.Connection) -> None:
    """Look through a copy of the file; states have checks of their own, unknown to SQLite."""
    found = copy.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise _damage(file, found)
    if file.sealed:
        return
    for number, name in copy.execute("SELECT number, id FROM experiments").fetchall():
        seal = file.seal(name)
        for row in copy.execute(
            "SELECT state, user, round FROM states WHERE experiment = ?", (number,)
        ):
            unseal(file, seal, *row)


def _damage(file: SqliteFile, found: str) -> RunError:
    return RunError(
        f"{file.path} is damaged, so no copy is made ({' '.join(found.split())}); restore it from "
        "an older copy"
    )


def forget_user(file: SqliteFile, user_id: str, experiment: str | None = None) -> list[str]:
    """Delete and overwrite all that the file holds of a user.

    Returns
    -------
    list
        The experiments that held something. Each counts one more forgotten user, nothing else.
    """
    held = [
        one.experiment for one in list_user(file, user_id) if experiment in (None, one.experiment)
    ]
    if not held:
        raise RunError(f"{file.path} holds nothing of user '{user_id}' in experiment {experiment}")
    with file.writing() as connection:
        for name in held:
            user = file.seal(name).user(user_id)
            (number,) = file.one(
                "UPDATE experiments SET forgotten = forgotten + 1 WHERE id = ? RETURNING number",
                (name,),
            )
            for table in ("states", "users"):
                connection.execute(
                    f"DELETE FROM {table} WHERE experiment = ? AND user = ?", (number, user)
                )
        file.note_scrub()
    file.scrub()
    return held


def runs_ended(file: SqliteFile) -> tuple[dict[str, bool], float]:
    """Whether each experiment has ended, by its id, and when the file was written last (0: never).

    The time is in seconds since 1970.
    """
    with file.reading() as connection:
        rows = connection.execute("SELECT id, finished IS NOT NULL, saved FROM experiments")
        found = [(str(name), bool(ended), float(saved)) for name, ended, saved in rows]
    last = max((saved for _, _, saved in found), default=0.0)
    return {name: ended for name, ended, _ in found}, last


def forget_experiment(file: SqliteFile, experiment: str) -> None:
    """Delete and overwrite all that the file holds of an experiment."""
    with file.writing() as connection:
        found = connection.execute(
            "SELECT number FROM experiments WHERE id = ?", (experiment,)
        ).fetchone()
        if found is None:
            raise RunError(f"{file.path} holds nothing of experiment {experiment}")
        file.drop(*found)
        file.note_scrub()
    file.scrub()


def _about(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
        json.dumps(found, ensure_ascii=False).encode()  # half a character cannot be printed
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _refuse_own(file: SqliteFile, out: Path) -> None:
    """Refuse a target in a state folder, this site's or another's: nothing there is replaceable."""
    own = [file.path.parent] if file.path.name == STORE else []
    refuse_inside(out, *own, *state_folders(out))
    parts = ("", "-wal", "-shm", ".lock")
    refuse_replacing(out, *(file.path.with_name(file.path.name + part) for part in parts))


def _write(out: Path, content: bytes) -> None:
    """The whole file or none, for the owner's eyes only."""
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        file = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
        os.replace(temporary, out)
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror}") from None
    finally:
        temporary.unlink(missing_ok=True)
