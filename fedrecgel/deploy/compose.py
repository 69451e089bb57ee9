"""A compose file: a SuperLink, its executor, and for each site a SuperNode and its executor.

What a container may reach and read is the point of the file::

    set-up       no network; makes all keys; ends
    superlink    server and every site's link; its own keys; its database
    server-app   server; run folders, the catalogue; the executor's secret, no key
    site-1       its link and its inner network; its own keys; no data
    site-1-app   its inner network alone; the site's interactions (read-only), its private state

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
    parts = [
        _HEAD.replace("BUILD\n", _BUILD.replace("CONTEXT", context) if context else ""),
        _set_up(sites, source),
        _SUPERLINK.replace("    LINKS\n", "".join(f"      {name}-link: {{}}\n" for name in sites)),
        _REGISTER.replace("SITES", ", ".join(sites)),
        _SERVER_APP.replace("CATALOGUE", source.catalogue),
        _COMMAND_LINE,
        *(_SITE.replace("NAME", name).replace("DATA", source.site(name)) for name in sites),
        _ends(sites, source),
    ]
    return "\n".join(parts)


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
        When there is a compose file already.
    """
    names, target = site_names(sites), out / "docker-compose.yml"
    if target.exists() and not overwrite:
        raise DeployError(f"{target} is there; replace it with --overwrite, or give another --out")
    said = []
    source = Source()
    if data is not None:
        source = Source("./sites")
        for site in write_sites(Dataset.load(data), out / "sites", names):
            said.append(f"{site.name}: {site.users:,} users in {site.file}")
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


_HEAD = """\
# Made by `fedrecgel deploy compose`; docs/how-to/containers.md says how to use and change it.
#
#   docker compose up --detach --wait        start; the first time builds the image
#   docker compose run --rm run rounds=5     train
#   docker compose down                      stop; with --volumes also forget everything
#
# FLWR            the Flower of all containers: 1.39 (gRPC, default) or 1.42 (HTTP)
# FEDRECGEL_USER  user and group that all containers run as; volumes keep their first owner
name: ${COMPOSE_PROJECT_NAME:-fedrecgel}

x-container: &container
  image: fedrecgel:flwr-${FLWR:-1.39}
BUILD
  user: ${FEDRECGEL_USER:-10001:10001}
  read_only: true
  tmpfs: ["/tmp:mode=1777,size=256m"]
  shm_size: 64m
  init: true
  cap_drop: [ALL]
  security_opt: ["no-new-privileges:true"]
  pids_limit: 256
  cpus: 2.0
  mem_limit: 512m
  restart: unless-stopped
  logging: {driver: json-file, options: {max-size: 5m, max-file: "3"}}

# One look costs a millisecond: a connection to the port, closed again.
x-listening: &listening
  interval: 3s
  timeout: 3s
  retries: 3
  start_period: 90s

services:"""

_BUILD = """\
  build:
    context: CONTEXT
    dockerfile: deploy/Dockerfile
    args:
      FLWR: ${FLWR:-1.39}.*
"""

_SUPERLINK = """\
  superlink:
    <<: *container
    command: [deploy, start, superlink, --keys, /keys, --database, /state/superlink.db,
              --api-bind, superlink-api]
    depends_on:
      set-up: {condition: service_completed_successfully}
    healthcheck:
      <<: *listening
      test: [CMD, bash, -c, "</dev/tcp/superlink-api/8000"]
    stop_grace_period: 15s
    networks:
      server: {aliases: [superlink-api]}
    LINKS
    volumes: ["superlink-keys:/keys:ro", "superlink-state:/state"]
"""

_REGISTER = """\
  register:
    <<: *container
    restart: "no"
    command: [deploy, register, --superlink, "superlink-api:8000", --keys, /keys, SITES]
    depends_on:
      superlink: {condition: service_healthy}
    networks: [server]
    volumes: ["public-keys:/keys:ro"]
"""

_SERVER_APP = """\
  server-app:
    <<: *container
    mem_limit: 1g
    command: [deploy, start, superexec, --address, "superlink-api:8000", --keys, /keys,
              --writable, /runs, --readable, /data/catalogue.json]
    depends_on:
      superlink: {condition: service_healthy}
    healthcheck:
      <<: *listening
      test: [CMD, bash, -c, "</dev/tcp/superlink-api/8000"]
    networks: [server]
    volumes: ["server-app-keys:/keys:ro", "CATALOGUE:ro", "runs:/runs"]
"""

_COMMAND_LINE = """\
  # docker compose run --rm run rounds=5 seed=1
  run:
    <<: *container
    profiles: [tools]
    restart: "no"
    command: []
    entrypoint: [fedrecgel, deploy, run, --superlink, "superlink-api:8000", --keys, /keys,
                 --app, /app, "catalogue=/data/catalogue.json", "out=/runs/{time}"]
    networks: [server]
    volumes: ["public-keys:/keys:ro", "runs:/runs:ro"]
"""

_SITE = """\
  NAME:
    <<: *container
    command: [deploy, start, supernode, --superlink, superlink, --keys, /keys, --site, NAME,
              --interactions, /data/interactions.csv, --state, /state/private]
    depends_on:
      register: {condition: service_completed_successfully}
    healthcheck:
      <<: *listening
      test: [CMD, bash, -c, "</dev/tcp/127.0.0.1/9094"]
    networks: [NAME-link, NAME]
    volumes: ["NAME-keys:/keys:ro"]
  NAME-app:
    <<: *container
    mem_limit: 1g
    command: [deploy, start, superexec, --address, "NAME:9094", --keys, /keys,
              --writable, /state/private, --readable, /data/interactions.csv]
    depends_on:
      NAME: {condition: service_healthy}
    healthcheck:
      <<: *listening
      test: [CMD, bash, -c, "</dev/tcp/NAME/9094"]
    networks: [NAME]
    volumes: ["NAME-app-keys:/keys:ro", "DATA:/data:ro", "NAME-state:/state"]
"""


def _set_up(sites: Sequence[str], source: Source) -> str:
    made = () if source.folder else ("--synthetic", "/data")
    command = ["deploy", "set-up", "--keys", "/keys", "--superlink-name", API_HOST, *made, *sites]
    volumes = [f"{name}-keys:/keys/{name}" for name in _key_folders(sites)]
    if not source.folder:
        volumes += ["catalogue:/data/catalogue"]
        volumes += [f"{source.site(name)}:/data/{name}" for name in sites]
    lines = "".join(f"      - {volume}\n" for volume in volumes)
    return (
        "  set-up:\n    <<: *container\n"
        '    restart: "no"\n    network_mode: none\n'
        f"    command: [{', '.join(command)}]\n    volumes:\n{lines}"
    )


def _key_folders(sites: Sequence[str]) -> list[str]:
    apps = [f"{name}-app" for name in ("server", *sites)]
    return ["authority", "public", "superlink", *sites, *apps]


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
