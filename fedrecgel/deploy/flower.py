"""Command lines of Flower's processes, all over TLS, for the Flower that is installed.

Flower 1.39 speaks gRPC between SuperNodes and SuperLink (the Fleet API, on a port of its own);
from 1.40 this is HTTP on the SuperLink's one port. Everything else is the same.

Each app runs in a process that a SuperExec starts (``--isolation process``), so that neither
SuperLink nor SuperNode ever loads an app's code. Nothing is installed at run time, nothing is
reported anywhere unless the user has switched that on, and no process is started without TLS.
"""

import importlib.metadata
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedrecgel.common.errors import DeployError

API_PORT, FLEET_PORT, NODE_PORT = 8000, 9092, 9094
"""Flower's default ports: a SuperLink's API, its gRPC Fleet API, a SuperNode's Runtime API."""

POLL_INTERVAL = 0.2
"""Seconds between two looks of a SuperExec for work; Flower's 1.0 costs a second a message, and
0.05 keeps two cores busy with looking."""

_DEFAULTS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": str(POLL_INTERVAL),
}
"""Variables of Flower's processes, where the user has not set them."""

WARM = Path(__file__).with_name("warm.py")

TESTED = ((1, 39), (1, 42))
"""First and last Flower whose command lines these are."""


def flower_version() -> str:
    """The installed Flower's version.

    Raises
    ------
    DeployError
        When it is one whose command lines are not known here.
    """
    version = importlib.metadata.version("flwr")
    if not TESTED[0] <= _minor(version) <= TESTED[1]:
        raise DeployError(
            f"Flower {version} is installed; deployments are for 1.39 to 1.42: "
            "pip install 'flwr>=1.39,<1.43'"
        )
    return version


def speaks_grpc(version: str) -> bool:
    """Whether SuperNodes of this Flower reach their SuperLink over gRPC."""
    return _minor(version) < (1, 40)


@dataclass(frozen=True)
class SuperLink:
    """Where a SuperLink listens.

    Attributes
    ----------
    host
        The name or address at which it is dialled; it must stand in its certificate.
    port
        Of its API: the CLI, SuperExecs, and on Flower >= 1.40 SuperNodes.
    fleet_port
        Of the Fleet API for SuperNodes on Flower 1.39.
    """

    host: str = "superlink"
    port: int = API_PORT
    fleet_port: int = FLEET_PORT

    @classmethod
    def at(cls, address: str) -> "SuperLink":
        """The SuperLink that a site dials at ``host`` or ``host:port``."""
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal() or len(port) > 5:
            return cls(address)
        return cls(host, int(port), int(port))

    @property
    def api(self) -> str:
        """Address of the API."""
        return f"{self.host}:{self.port}"

    def fleet(self, version: str) -> str:
        """Address that SuperNodes of this Flower dial."""
        return f"{self.host}:{self.fleet_port if speaks_grpc(version) else self.port}"


def superlink_command(
    link: SuperLink,
    certificates: Path,
    database: Path,
    version: str,
    *,
    bind: str = "0.0.0.0",
    api_bind: str | None = None,
) -> list[str]:
    """Start a SuperLink.

    Parameters
    ----------
    certificates
        The SuperLink's folder, made by `fedrecgel.deploy.certificates`.
    database
        File that its state lasts in; a restarted SuperLink goes on with running runs.
    bind
        Address to listen on.
    api_bind
        For the API alone, where SuperNodes have a port of their own (Flower 1.39): an address that
        they cannot reach.
    """
    api = api_bind if api_bind and speaks_grpc(version) else bind
    command = ["flower-superlink", "--host", api, "--port", str(link.port)]
    if speaks_grpc(version):
        command += ["--fleet-api-type", "grpc-rere"]
        command += ["--fleet-api-address", f"{bind}:{link.fleet_port}"]
    return [
        *command,
        "--isolation",
        "process",
        "--enable-supernode-auth",
        "--database",
        str(database),
        *_server_tls(certificates),
        "--disable-runtime-dependency-installation",
    ]


def supernode_command(
    link: SuperLink,
    certificates: Path,
    node_config: Mapping[str, str | int | float | bool],
    version: str,
    *,
    bind: str = "0.0.0.0",
    port: int = NODE_PORT,
    authority: Path | None = None,
    isolation: str = "process",
) -> list[str]:
    """Start a site's SuperNode.

    Parameters
    ----------
    certificates
        The site's folder, made by `fedrecgel.deploy.certificates`.
    port
        Of its Runtime API, which only its own SuperExec needs to reach.
    authority
        Certificate of the authority that signed the SuperLink's, if another did than the site's.
    isolation
        ``process``, or ``subprocess``: the SuperNode starts its SuperExec itself, over TLS as well.
    """
    return [
        "flower-supernode",
        *(["--grpc-rere"] if speaks_grpc(version) else []),
        "--superlink",
        link.fleet(version),
        "--root-certificates",
        str(authority or certificates / "ca.crt"),
        "--auth-supernode-private-key",
        str(certificates / "node"),
        "--isolation",
        isolation,
        "--host",
        bind,
        "--port",
        str(port),
        "--node-config",
        config_text(node_config),
        *_server_tls(certificates),
    ]


def superexec_command(address: str, certificates: Path, *, warm: bool = False) -> list[str]:
    """Start the SuperExec beside a SuperLink (its API's address) or a SuperNode (its own).

    Dependencies are not installed unless a SuperExec is told to, so there is nothing to switch off.

    Parameters
    ----------
    warm
        Fork client apps from a process that has imported torch (`fedrecgel.deploy.warm`), where
        that is safe: on Linux.
    """
    start = ["flower-superexec"]
    if warm and sys.platform == "linux":
        # -P: the file's folder is not where Python looks for modules.
        start = [sys.executable, "-P", str(WARM)]
    return [
        *start,
        "--runtime-api-address",
        address,
        "--root-certificates",
        str(certificates / "ca.crt"),
        "--superexec-auth-secret-file",
        str(certificates / "superexec.secret"),
    ]


def flwr_command(*arguments: str) -> list[str]:
    """Flower's command ``flwr``; its connections are in the folder that FLWR_HOME names."""
    return [sys.executable, "-c", "from flwr.cli.app import app; app()", *arguments]


def environment(home: Path, base: Mapping[str, str] | None = None) -> dict[str, str]:
    """Variables of a process of Flower.

    Parameters
    ----------
    home
        Folder of its own: processes that share one write over each other's apps.
    base
        Variables to start from; default: those of this process.
    """
    variables = dict(os.environ if base is None else base)
    scripts = str(Path(sys.executable).parent)
    path = variables.get("PATH", os.defpath)
    return {
        **_DEFAULTS,
        **variables,
        # SuperExecs start flwr-serverapp and flwr-clientapp by name.
        "PATH": path if path.split(os.pathsep)[0] == scripts else f"{scripts}{os.pathsep}{path}",
        "FLWR_HOME": str(home),
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }


def write_connection(home: Path, name: str, address: str, ca: Path) -> None:
    """Write ``config.toml``, by which ``flwr`` finds the SuperLink under ``name``."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(
        f"[superlink]\ndefault = {json.dumps(name)}\n\n"
        f"[superlink.{name}]\naddress = {json.dumps(address)}\n"
        f"root-certificates = {json.dumps(str(ca.resolve()))}\n",
        encoding="utf-8",
    )


def config_text(values: Mapping[str, str | int | float | bool]) -> str:
    """A ``--node-config`` or ``--run-config`` that Flower reads back as these values.

    Raises
    ------
    DeployError
        When a value holds a single quote, which Flower's form has no way to write.
    """
    for name, value in values.items():
        if isinstance(value, str) and re.search(r"['\n]", value):
            raise DeployError(
                f"'{name}' cannot be given to Flower: {value!r} holds a quote or a line break; "
                "choose another"
            )
    return " ".join(f"{name}={_toml(value)}" for name, value in values.items())


def _toml(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else str(value)


def _server_tls(certificates: Path) -> list[str]:
    return [
        "--ssl-ca-certfile",
        str(certificates / "ca.crt"),
        "--ssl-certfile",
        str(certificates / "tls.crt"),
        "--ssl-keyfile",
        str(certificates / "tls.key"),
        "--superexec-auth-secret-file",
        str(certificates / "superexec.secret"),
    ]


def _minor(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(re.match(r"\d+", minor).group())  # type: ignore[union-attr]
