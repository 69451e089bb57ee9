"""A compose file: a SuperLink, its executor, and for each site a SuperNode and its executor.

What a container may reach and read is the point of the file::

    set-up       no network; makes all keys; ends
    superlink    server and every site's link; its own keys; its database
    server-app   server; run folders, the catalogue; the executor's secret, no key
    site-1       its link and its inner network; its own keys; no data
    site-1-app   its inner network alone; the site's interactions (read-only), its private state
    site-1-serve as site-1-app, with a certificate of its own; started on request

No network leads outside. On Flower 1.39 the SuperLink's API, through which runs are started,
listens on the server's network alone: a site reaches the port for sites and nothing else.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import fedrecgel
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import DeployError
from fedrecgel.common.target import check_folder
from fedrecgel.deploy import compose_parts as parts
from fedrecgel.deploy.sites import CATALOGUE, write_sites

MAX_SITES = 12
"""Sites of one compose file: each has two networks, and docker's own address pools hold thirty."""
SITES = 3
"""Sites unless told otherwise."""

API_HOST = "superlink-api"
"""The SuperLink's name on the server's network, besides ``superlink``."""


def site_names(count: int) -> list[str]:
    """``site-1``, ``site-2``, ... with as many digits as sort well.

    Raises
    ------
    DeployError
        When there are none, or too many for one machine.
    """
    if not 1 <= count <= MAX_SITES:
        raise DeployError(
            f"a compose file holds 1 to {MAX_SITES} sites, not {count}; others run on other "
            "machines, or all as plain processes: fedrecgel deploy local"
        )
    width = len(str(count))
    return [f"site-{number:0{width}d}" for number in range(1, count + 1)]


@dataclass(frozen=True)
class Source:
    """Where the sites' data come from: ``folder``, or made by the set-up if there is none.

    Attributes
    ----------
    folder
        Relative to the compose file; holds ``catalogue.json`` and ``NAME/interactions.csv``.
    """

    folder: str = ""

    def site(self, name: str) -> str:
        """What is mounted as the site's data."""
        return f"{self.folder}/{name}" if self.folder else f"{name}-data"

    @property
    def catalogue(self) -> str:
        """What the server gets mounted: the catalogue, and nothing of a site."""
        if not self.folder:
            return "catalogue:/data"
        return f"{self.folder}/{CATALOGUE}:/data/{CATALOGUE}"


def compose_text(sites: Sequence[str], source: Source | None = None, context: str = ".") -> str:
    """The compose file.

    Parameters
    ----------
    context
        The project's checkout, relative to the compose file; empty: the image is there already.
    """
    source = source or Source()
    blocks = [
        parts.HEAD,
        _set_up(sites, source, context),
        parts.SUPERLINK.replace(
            "    LINKS\n", "".join(f"      {name}-link: {{}}\n" for name in sites)
        ),
        parts.REGISTER.replace("SITES", ", ".join(sites)),
        parts.SERVER_APP.replace("CATALOGUE", source.catalogue),
        parts.COMMAND_LINE.replace("COUNT", str(len(sites))),
        *(parts.SITE.replace("NAME", name).replace("DATA", source.site(name)) for name in sites),
        _ends(sites, source),
    ]
    return "\n".join(blocks)


def write_compose(
    out: Path, sites: int = SITES, data: Path | None = None, *, overwrite: bool = False
) -> list[str]:
    """Write ``docker-compose.yml`` and, of a prepared data set, the sites' files.

    Returns
    -------
    list of str
        What was done and what to do next, in lines.

    Raises
    ------
    DeployError
        When there is a compose file already, or a site's own file where one would be written.
    """
    check_folder(out)
    names, target = site_names(sites), out / "docker-compose.yml"
    if target.exists() and not overwrite:
        raise DeployError(f"{target} is there; replace it with --overwrite, or give another --out")
    said = []
    source = Source()
    if data is not None:
        source = Source("./sites")
        for site in write_sites(Dataset.load(data), out / "sites", names, readable=True):
            users = "1 user" if site.users == 1 else f"{site.users:,} users"
            said.append(f"{site.name}: {users} in {site.file}")
    out.mkdir(parents=True, exist_ok=True)
    context = build_context(out)
    target.write_text(compose_text(names, source, context), encoding="utf-8")
    said.append(f"{target}: {sites} sites" + ("" if data else ", data are made at the first start"))
    if not context:
        said.append("build the image in a checkout of the project: docker compose build")
    if data is not None:
        said.append(
            "the containers run as user 10001 and must be able to read the sites' files; for "
            "another user: export FEDRECGEL_USER=$(id -u):$(id -g)"
        )
    return said


def checkout() -> Path | None:
    """The project's checkout that this package is run from, if it is."""
    folder = Path(fedrecgel.__file__).resolve().parents[1]
    return folder if (folder / "deploy" / "Dockerfile").is_file() else None


def build_context(out: Path) -> str:
    """The checkout as seen from the folder of a compose file; empty if there is none."""
    found = checkout()
    return os.path.relpath(found, out.resolve()) if found else ""


def _set_up(sites: Sequence[str], source: Source, context: str) -> str:
    # It comes first, so it is the one that builds the image of all.
    build = parts.BUILD.replace("CONTEXT", context) if context else ""
    made = () if source.folder else ("--synthetic", "/volumes/data")
    command = [
        "deploy",
        "set-up",
        "--keys",
        "/volumes/keys",
        "--superlink-name",
        API_HOST,
        *made,
        *sites,
    ]
    volumes = [f"{name}-keys:/volumes/keys/{name}" for name in _key_folders(sites)]
    if not source.folder:
        volumes += ["catalogue:/volumes/data/catalogue"]
        volumes += [f"{source.site(name)}:/volumes/data/{name}" for name in sites]
    lines = "".join(f"      - {volume}\n" for volume in volumes)
    return (
        f"  set-up:\n    <<: *container\n{build}"
        '    restart: "no"\n    network_mode: none\n'
        f"    command: [{', '.join(command)}]\n    volumes:\n{lines}"
    )


def _key_folders(sites: Sequence[str]) -> list[str]:
    apps = [f"{name}-app" for name in ("server", *sites)]
    serve = [f"{name}-serve" for name in sites]
    return ["authority", "public", "superlink", *sites, *apps, *serve]


def _ends(sites: Sequence[str], source: Source) -> str:
    networks = ["server", *(end for name in sites for end in (f"{name}-link", name))]
    volumes = [f"{name}-keys" for name in _key_folders(sites)]
    volumes += ["superlink-state", "runs", *(f"{name}-state" for name in sites)]
    if not source.folder:
        volumes += ["catalogue", *(source.site(name) for name in sites)]
    return (
        "# Nothing leads outside.\nnetworks:\n"
        + "".join(f"  {name}: {{internal: true}}\n" for name in networks)
        + "\nvolumes:\n"
        + "".join(f"  {name}:\n" for name in volumes)
    )
