"""A deployed site as a place of models: published file, private store, and the site's own file."""

from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path

from fedrecgel.client.published import load_published, published_file
from fedrecgel.client.sealing import read_key
from fedrecgel.client.sqlite_file import SqliteFile
from fedrecgel.client.sqlite_store import SqliteStore
from fedrecgel.client.state_folder import STORE
from fedrecgel.common.data.catalogue import read_own
from fedrecgel.common.errors import RunError
from fedrecgel.serve.current import file_stamp
from fedrecgel.serve.model import Model
from fedrecgel.serve.people import People


@dataclass(frozen=True)
class SitePlace:
    """The node's ``state`` folder, ``interactions`` and ``key-file``; nothing of them is changed.

    Users are those of the file as it is now: whoever is new in it, or had too little to train on,
    gets a local fit.
    """

    state: Path
    interactions: Path
    key_file: Path | None = None

    def check(self) -> None:
        """Refuse what cannot be read, whether or not a run has ended here yet.

        Raises
        ------
        FedRecError
            Naming the folder or file.
        """
        if not self.state.is_dir():
            raise RunError(f"there is no state folder {self.state}; give the node's own")
        read_own(self.interactions, None)
        key, store = self._key(), self.state / STORE
        if store.exists():
            SqliteFile(store, key=key, read_only=True).close()

    def _key(self) -> bytes | None:
        return None if self.key_file is None else read_key(self.key_file)

    def stamp(self) -> Hashable:
        """See `Place.stamp`."""
        return file_stamp(published_file(self.state), self.interactions)

    def load(self) -> Model:
        """See `Place.load`."""
        published = load_published(self.state)
        rows = read_own(self.interactions, published.threshold).interactions
        people = People.of_rows(rows, published.items)
        store = SqliteStore(
            self.state / STORE,
            published.experiment.id,
            published.site,
            people.user_ids,
            published.algorithm.private_template,
            self._key(),
            read_only=True,
        )
        return Model(published, people, store)
