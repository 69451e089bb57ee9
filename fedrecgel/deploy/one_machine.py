"""A prepared data set, split over sites and trained by a whole deployment on this machine.

::

    OUT/deployment.json        which data and sites; another deployment is not mixed into it
    OUT/sites/                 catalogue.json, and for each site interactions.csv
    OUT/state/NAME/            a site's private state: never removed
    OUT/run/                   run folder, the server's
    OUT/certificates/ app/ flower/ flower.db logs/
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrecgel.common.config import kebab
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import ConfigError, DeployError, FedRecError, RunError
from fedrecgel.common.json_file import write_json
from fedrecgel.common.presets import preset_config
from fedrecgel.common.target import check_folder, refuse_replacing
from fedrecgel.deploy.bundle import write_app
from fedrecgel.deploy.flower import config_text
from fedrecgel.deploy.local import LocalDeployment, LocalSite, deployment
from fedrecgel.deploy.sites import CATALOGUE, SiteFile, write_sites
from fedrecgel.server.checkpoint import read_checkpoints
from fedrecgel.server.run_folder import RunFolder
from fedrecgel.simulation.result import Result

MAX_SITES = 64
WAIT = 120.0
"""Seconds that the server waits for the sites."""
ROUND_TIMEOUT = 300.0
"""Seconds for a round's replies unless the settings say otherwise. Flower itself tells of a client
app that was killed after 60 s and of a node that is gone after 60 to 90."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class OneMachine:
    """A data set's sites and the folder of their deployment."""

    folder: Path
    data: Dataset
    sites: list[SiteFile]

    @classmethod
    def prepare(cls, data: Dataset, folder: Path, sites: int) -> "OneMachine":
        """Write the sites' files, or take those that are there.

        Raises
        ------
        FedRecError
            When the folder holds another deployment or a site's own file, or the data cannot be
            split so.
        """
        if not 1 <= sites <= MAX_SITES:
            raise ConfigError(f"--sites must be from 1 to {MAX_SITES}, not {sites}")
        folder = folder.resolve()
        about = {"data": data.name, "hash": data.hash, "sites": sites}
        noted = folder / "deployment.json"
        check_folder(folder)
        if noted.exists() and _read(noted) != about:
            raise DeployError(
                f"{folder} holds a deployment of other data or another number of sites; give "
                "another --out"
            )
        width = len(str(sites))
        names = [f"site-{number:0{width}d}" for number in range(1, sites + 1)]
        files = write_sites(data, folder / "sites", names)
        folder.chmod(0o700)  # everything below is the sites', or tells of them
        write_json(noted, about)
        return cls(folder, data, files)

    @property
    def run_folder(self) -> Path:
        """Where the server writes its results."""
        return self.folder / "run"

    def state(self, site: str) -> Path:
        """A site's private state."""
        return self.folder / "state" / site

    def local_site(self, site: SiteFile) -> LocalSite:
        """What a site's SuperNode is started with."""
        config = {
            "site": site.name,
            "interactions": str(site.file),
            "state": str(self.state(site.name)),
        }
        return LocalSite(site.name, config)

    @contextmanager
    def running(self, say: Say) -> Iterator[LocalDeployment]:
        """All processes, from here on until the block ends."""
        sites = [self.local_site(site) for site in self.sites]
        with deployment(self.folder, sites, say=say) as running:
            yield running

    def run_config(
        self,
        settings: Mapping[str, Any],
        *,
        algorithm: str = "fedrecgel",
        preset: str = "tuned",
        overwrite: bool = False,
        resume: bool = False,
    ) -> dict[str, Any]:
        """What the run is handed in with.

        Raises
        ------
        FedRecError
            When a setting will not do: better said before everything starts.
        """
        named = {"round-timeout": ROUND_TIMEOUT} | {kebab(n): v for n, v in settings.items()}
        known = preset_config(algorithm, preset, self.data.name, named).to_flat()
        options = {
            "algorithm": algorithm,
            "preset": preset,
            "catalogue": str(self.folder / "sites" / CATALOGUE),
            "out": str(self.run_folder),
            "min-nodes": len(self.sites),
            "wait": WAIT,
            "overwrite": overwrite,
            "resume": resume,
        }
        return options | {name: known[name] for name in named}

    @staticmethod
    def check_run(
        folder: Path, data: Dataset, *, overwrite: bool = False, resume: bool = False
    ) -> None:
        """Whether there can be such a run in a deployment's folder; nothing is written.

        Raises
        ------
        FedRecError
            When both are asked for, or there is a run already, or none to go on with, or when
            Flower has no way to write the folder's name.
        """
        run = folder / "run"
        if resume and overwrite:
            raise ConfigError("--resume goes on with the run, --overwrite removes it: give one")
        check_folder(folder)
        config_text({"--out": str(folder.resolve())})  # node-config names what lies below it
        if resume and not run.exists():
            raise RunError(f"{run} is not there: no run to go on with; leave --resume out")
        if resume:
            read_checkpoints(RunFolder.open(run).path)
        else:
            RunFolder.check(run, overwrite)
            if data.path is not None:
                refuse_replacing(run, data.path)

    def train(self, running: LocalDeployment, run_config: Mapping[str, Any], say: Say) -> Result:
        """Hand a run in and follow it to its end.

        Raises
        ------
        DeployError
            When it fails, or a process ends.
        """
        running.run(write_app(self.folder / "app"), run_config, say)
        return Result.open(self.run_folder)

    def recommend(self, site: SiteFile, k: int) -> tuple[str, list[str]]:
        """A user of a site and their best items, computed from what lies at the site.

        Raises
        ------
        FedRecError
            When nothing was published there.
        """
        from fedrecgel.serve.site_place import SitePlace

        model = SitePlace(self.state(site.name), site.file).load()
        user = str(model.people.user_ids[0])
        return user, [scored.item for scored in model.recommend(user, k).items]

    def recommendations(self, k: int = 10) -> list[str]:
        """A line for each site; what is wrong instead, where there is nothing to recommend with."""
        lines = []
        for site in self.sites:
            try:
                user, items = self.recommend(site, k)
                lines.append(f"{site.name}, user {user}: {' '.join(items)}")
            except FedRecError as error:
                lines.append(f"{site.name}: {error}")
        return lines


def _read(path: Path) -> object:
    """What a JSON file holds; None if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
