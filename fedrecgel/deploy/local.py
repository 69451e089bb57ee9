"""A whole deployment as plain processes of one machine, on loopback, over TLS.

The same processes with the same command lines as on machines of their own or in containers; only
the addresses differ.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.certificates import make_certificates
from fedrecgel.deploy.control import Operator
from fedrecgel.deploy.flower import (
    SuperLink,
    environment,
    flower_version,
    speaks_grpc,
    superexec_command,
    superlink_command,
    supernode_command,
)
from fedrecgel.deploy.probe import distrust, is_healthy, probe
from fedrecgel.deploy.processes import Process, Processes, free_ports

HOST = "127.0.0.1"
START = 120.0
"""Seconds that a process has to answer, and a run to begin."""

Values = Mapping[str, str | int | float | bool]


@dataclass(frozen=True)
class LocalSite:
    """A site's name and what its SuperNode is told."""

    name: str
    node_config: Values


@dataclass
class LocalDeployment:
    """Running processes: a SuperLink and its SuperExec, for each site a SuperNode and its own.

    Attributes
    ----------
    ports
        Port of each SuperNode's Runtime API, by site.
    """

    folder: Path
    version: str
    link: SuperLink
    operator: Operator
    processes: Processes
    ports: dict[str, int] = field(default_factory=dict)

    @property
    def certificates(self) -> Path:
        """Folder of certificates and keys."""
        return self.folder / "certificates"

    def start_superlink(self) -> Process:
        """Start the SuperLink and wait until it answers."""
        folder = self.certificates / "superlink"
        command = superlink_command(
            self.link, folder, self.folder / "flower.db", self.version, bind=HOST
        )
        process = self._start("superlink", command, 0)
        self._wait_healthy("superlink", self.link.api, folder)
        if speaks_grpc(self.version):
            probe(self.link.fleet(self.version), folder / "ca.crt")
        return process

    def start_server_executor(self) -> Process:
        """Start the SuperExec that runs server apps."""
        command = superexec_command(self.link.api, self.certificates / "superlink")
        return self._start("superlink-exec", command, 1)

    def start_supernode(self, site: LocalSite) -> Process:
        """Start a site's SuperNode; it connects by itself."""
        folder = self.certificates / site.name
        port = self.ports.setdefault(site.name, *free_ports(1))
        command = supernode_command(
            self.link, folder, site.node_config, self.version, bind=HOST, port=port
        )
        return self._start(site.name, command, 2)

    def start_client_executor(self, site: str) -> Process:
        """Start the SuperExec that runs client apps, once its SuperNode answers."""
        folder, address = self.certificates / site, f"{HOST}:{self.ports[site]}"
        self._wait_healthy(site, address, folder)
        command = superexec_command(address, folder, warm=True)
        return self._start(f"{site}-exec", command, 3)

    def wait_online(self, count: int) -> None:
        """Wait until the SuperLink knows that so many nodes are connected."""

        def all_there() -> bool:
            online = [node for node in self.operator.nodes() if node["status"] == "online"]
            return len(online) >= count

        self.processes.wait("the federation", all_there, START, 0.5)

    def run(self, app: Path, run_config: Values, say: Callable[[str], None]) -> None:
        """Hand a run in and tell what it says until it ends.

        Raises
        ------
        DeployError
            When it fails, or when a process ends.
        """
        self.operator.run(app, run_config, say, self.processes.check)

    def _start(self, name: str, command: Sequence[str], rank: int) -> Process:
        home = self.folder / "flower" / name
        home.mkdir(parents=True, exist_ok=True)
        variables = environment(home)
        # All sites share this machine's cores.
        variables.setdefault("OMP_NUM_THREADS", "1")
        return self.processes.start(name, command, variables, self.folder, rank)

    def _wait_healthy(self, name: str, address: str, certificates: Path) -> None:
        ca = certificates / "ca.crt"

        def ready() -> bool:
            if is_healthy(address, ca):
                return True
            # A certificate that will not do stays so: no use to wait.
            wrong = distrust(address, ca)
            if wrong:
                raise DeployError(f"{name}: {wrong}")
            return False

        self.processes.wait(name, ready, START, 0.1)


@contextmanager
def deployment(
    folder: Path,
    sites: Sequence[LocalSite],
    *,
    say: Callable[[str], None] = lambda line: None,
    version: str | None = None,
) -> Iterator[LocalDeployment]:
    """Start a deployment, with certificates and keys of its own; stop it at the end.

    Parameters
    ----------
    folder
        Where certificates, logs and Flower's files go; certificates that are there are taken.
    say
        Told what is being done.

    Raises
    ------
    DeployError
        When a process does not start, ends, or does not answer in time; all are stopped then.
    """
    version = version or flower_version()
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    make_certificates(folder / "certificates", [s.name for s in sites], existing="keep")
    port, fleet_port = free_ports(2)
    link = SuperLink(HOST, port, fleet_port)
    with Processes(folder / "logs") as processes:
        operator = Operator.of(
            folder / "flower" / "operator", link.api, folder / "certificates/superlink/ca.crt"
        )
        running = LocalDeployment(folder, version, link, operator, processes)
        transport = "gRPC" if speaks_grpc(version) else "HTTP"
        say(f"Flower {version}: SuperLink at {link.api}, {transport} with TLS for sites")
        running.start_superlink()
        running.start_server_executor()
        for site in sites:
            operator.register(folder / "certificates" / site.name / "node.pub", site.name)
        for site in sites:
            running.start_supernode(site)
        for site in sites:
            running.start_client_executor(site.name)
        running.wait_online(len(sites))
        say(f"{len(sites)} sites are online")
        yield running
