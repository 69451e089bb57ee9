"""The SQLite file of a site's private store: opened, checked, written in whole transactions.

Experiments, states by (experiment, user, round), and what is noted about each user of an
experiment. The write-ahead log lets readers read while the owner writes; ``synchronous=FULL`` makes
what was written outlast a crash of the machine; ``secure_delete`` overwrites what is deleted.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fedrecgel.client.lock import Ownership, own
from fedrecgel.client.sealing import Encrypted, Plain, Seal, derive
from fedrecgel.client.sqlite_damage import LINES, checked, damage, is_meta, line_of
from fedrecgel.common.errors import RunError

APPLICATION = 0x46524743
FORMAT = 1
WAIT = 10.0
"""Seconds that a second owner waits for the first."""

_SCHEMA = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value) WITHOUT ROWID",
    # forgotten: how many users were, not who. saved, finished: seconds since 1970.
    """CREATE TABLE experiments (number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE,
       template TEXT NOT NULL, about TEXT NOT NULL, forgotten INTEGER NOT NULL DEFAULT 0,
       saved REAL NOT NULL, finished REAL)""",
    """CREATE TABLE states (experiment INTEGER NOT NULL, user NOT NULL, round INTEGER NOT NULL,
       state BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX place ON states (experiment, user, round)",
    # since: the first round that the file knows of a user.
    """CREATE TABLE users (experiment INTEGER NOT NULL, user NOT NULL, since INTEGER,
       chosen INTEGER, ranks BLOB, PRIMARY KEY (experiment, user)) WITHOUT ROWID""",
    f"PRAGMA application_id = {APPLICATION}",
    f"PRAGMA user_version = {FORMAT}",
)

_PAGE = 16384
"""Bytes; large pages for large states."""

_LOG_LIMIT = 64 << 20
"""Bytes of the write-ahead log that stay between transactions."""


class SqliteFile:
    """An open file.

    Parameters
    ----------
    site
        Name of the site it must belong to; ``None`` = whichever. A new file needs one.
    key
        From `read_key`, for an encrypted file.
    create
        Make the file when it is not there.
    read_only
        Change nothing and lock nobody out.
    need_key
        Whether an encrypted file may be opened only with its key.
    """

    def __init__(
        self,
        path: Path,
        site: str | None = None,
        key: bytes | None = None,
        *,
        create: bool = False,
        read_only: bool = False,
        need_key: bool = True,
        wait: float = WAIT,
    ) -> None:
        self.path = path
        self._owner: Ownership | None = None
        self._finalizer: Callable[[], object] = int
        self._key, self._salt = key, b""
        self._guard = threading.RLock()
        if not create and not path.is_file():
            raise RunError(f"{path} is not there; a site makes it when it first trains")
        with self._errors():
            self._look(create)
            if not read_only:
                _make(path)
                self._owner = own(path, wait)
            try:
                self.connection = self._connect("ro" if read_only else "rw")
                # Not a method: a file that refers to itself would stay open.
                self.connection.row_factory = partial(checked, path)
                self._finalizer = weakref.finalize(self, self.connection.close)
                self._open(site, create, read_only, need_key)
            except BaseException:
                self.close()
                raise

    def _connect(self, mode: str) -> sqlite3.Connection:
        return sqlite3.connect(
            f"file:{quote(str(self.path.absolute()))}?mode={mode}",
            uri=True,
            timeout=WAIT,
            isolation_level=None,
            check_same_thread=False,
        )

    def _look(self, create: bool) -> None:
        """Refuse what is no store before it, its mode or its folder is touched."""
        log = self.path.with_name(f"{self.path.name}-wal")
        try:
            logged = log.is_file() and log.stat().st_size > 0
            with self.path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                head = file.read(_HEAD)
        except OSError:
            return  # not there yet, or what SQLite has a line for
        if size and not head.startswith(b"SQLite format 3\0"):
            raise RunError(f"{self.path} {LINES['NOTADB']}")
        if head[68:72] == APPLICATION.to_bytes(4, "big"):
            return
        if logged:  # a new store may be in its log alone
            with closing(self._connect("ro")) as connection:
                self._refuse_foreign(connection, create)
        elif not create or size > max(int.from_bytes(head[16:18], "big"), _PAGE):
            raise self._foreign()

    def _open(self, site: str | None, create: bool, read_only: bool, need_key: bool) -> None:
        execute = self.connection.execute
        execute(f"PRAGMA page_size = {_PAGE}")
        new = self._refuse_foreign(self.connection, create)
        if not read_only:
            execute("PRAGMA journal_mode = WAL")
            execute("PRAGMA synchronous = FULL")
            execute("PRAGMA secure_delete = ON")
            execute(f"PRAGMA journal_size_limit = {_LOG_LIMIT}")
            if new:
                assert site is not None, "a new file belongs to a site"
                self._begin(site)
        version = execute("PRAGMA user_version").fetchone()[0]
        if version > FORMAT:
            raise RunError(
                f"{self.path} is of format {version}, which a newer fedrecgel made; this one knows "
                f"{FORMAT}: install that version"
            )
        meta = dict(execute("SELECT name, value FROM meta"))
        if version < 1 or not is_meta(meta):
            raise self.damage("its head is not what was written")
        self.site: str = meta["site"]
        if site not in (None, self.site):
            raise RunError(
                f"{self.path} belongs to site '{self.site}', not '{site}'; give each site a state "
                "folder of its own"
            )
        self.encrypted = "check" in meta
        self._check_key(meta, need_key)
        if not read_only and "scrub" in meta:
            # A process that had deleted something was killed before it was overwritten everywhere.
            with suppress(RunError):
                self.scrub()

    def _refuse_foreign(self, connection: sqlite3.Connection, create: bool) -> bool:
        """Whether there is nothing in the file yet."""
        if connection.execute("PRAGMA application_id").fetchone()[0] == APPLICATION:
            return False
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if tables or not create:
            raise self._foreign()
        return True

    def _foreign(self) -> RunError:
        return RunError(f"{self.path} is not a private store of fedrecgel")

    def _begin(self, site: str) -> None:
        with self.writing() as connection:
            for statement in _SCHEMA:
                connection.execute(statement)
            meta: dict[str, str | bytes] = {"site": site}
            if self._key is not None:
                meta["salt"] = salt = os.urandom(16)
                meta["check"] = derive(self._key, salt, "check")
            connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())

    def _check_key(self, meta: dict[str, bytes], need_key: bool) -> None:
        if self._key is None:
            if self.encrypted and need_key:
                raise RunError(f"{self.path} is encrypted; give its key file")
            return
        if not self.encrypted:
            raise RunError(
                f"{self.path} is not encrypted; open it without a key file, or begin a new one"
            )
        self._salt = meta["salt"]
        if derive(self._key, self._salt, "check") != meta["check"]:
            raise RunError(f"the key does not fit {self.path}; give the key file it was made with")

    @property
    def sealed(self) -> bool:
        """Whether it is encrypted and was opened without its key."""
        return self.encrypted and self._key is None

    def seal(self, experiment: str) -> Seal:
        """How states of an experiment stand in the file."""
        if self._key is None:
            return Plain(experiment)
        return Encrypted(self._key, self._salt, experiment)

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: everything in the block, or nothing."""
        with self._transaction("BEGIN IMMEDIATE") as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The file as it is at one moment, whatever the owner writes meanwhile."""
        with self._guard:
            if self.connection.in_transaction:
                yield self.connection
                return
            with self._transaction("BEGIN") as connection:
                yield connection

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        with self._guard, self._errors():
            self.connection.execute(begin)
            try:
                yield self.connection
                self.connection.execute("COMMIT")
            except BaseException:
                # Some errors have rolled back already.
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise

    def one(self, statement: str, values: tuple[object, ...]) -> tuple[Any, ...]:
        """The row that must be there: none is damage, of an index as a rule."""
        found: tuple[Any, ...] | None = self.connection.execute(statement, values).fetchone()
        if found is None:
            raise self.damage("a row is not where it was saved")
        return found

    def damage(self, found: str) -> RunError:
        """What to say of a file that holds something else than was written."""
        return damage(self.path, found)

    def drop(self, experiment: int) -> None:
        """Delete all of an experiment, within `writing`."""
        for statement in (
            "DELETE FROM states WHERE experiment = ?",
            "DELETE FROM users WHERE experiment = ?",
            "DELETE FROM experiments WHERE number = ?",
        ):
            self.connection.execute(statement, (experiment,))

    def note_scrub(self) -> None:
        """Note, within `writing`, that `scrub` has to follow: also when this process is killed."""
        self.connection.execute("INSERT OR REPLACE INTO meta VALUES ('scrub', 1)")

    def scrub(self) -> None:
        """Overwrite what was deleted, in the file and in its log.

        Raises
        ------
        RunError
            When it cannot be done now: the next owner tries again.
        """
        with self._guard, self._errors():
            self._empty_log()
            # What the file's own pages may have kept of earlier places goes with the pages. The
            # copy that this takes must not lie in another folder than the private file does.
            folder = str(self.path.absolute().parent).replace("'", "''")
            self.connection.execute(f"PRAGMA temp_store_directory = '{folder}'")
            self.connection.execute("VACUUM")
            self.connection.execute("DELETE FROM meta WHERE name = 'scrub'")
            self._empty_log()

    def _empty_log(self) -> None:
        busy = self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
        if busy:
            raise RunError(
                f"{self.path} is being read, so that its log cannot be emptied; try again, or stop "
                "the reader (fedrecgel serve)"
            )

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            line = line_of(error)
            if not line:
                raise
            raise RunError(f"{self.path} {line}") from None
        except OSError as error:
            raise RunError(f"{self.path} cannot be written: {error.strerror or error}") from None

    def close(self) -> None:
        """Close the file; another process may own it then."""
        with suppress(sqlite3.Error):
            self._finalizer()
        self._owner = None


_HEAD = 100
"""Bytes of SQLite's header."""


def _make(path: Path) -> None:
    """The file with its folder, for the owner's eyes only; its log gets the same mode."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
