"""Command lines of Flower's processes in a deployment, for the Flower that is installed.

Up to 1.39 sites reach the SuperLink over gRPC at a port of its own; from 1.40 on over HTTP at the
port that everything else uses. What else differs between versions belongs here too. All commands
use TLS, node authentication and the secret of the executors; a folder of keys is one that
`fedrecgel.deploy.certificates` made.
"""

import importlib.metadata
import re
from collections.abc import Mapping
from pathlib import Path

API_PORT = 8000
"""Port of the SuperLink for its executor, the command line, and from Flower 1.40 on for sites."""
FLEET_PORT = 9092
"""Port of the SuperLink for sites, gRPC, up to Flower 1.39."""
NODE_PORT = 9094
"""Port of a SuperNode for its executor."""


def speaks_grpc(version: str | None = None) -> bool:
    """Whether sites of this Flower (default: the installed one) reach the SuperLink over gRPC."""
    version = version or importlib.metadata.version("flwr")
    found = re.match(r"(\d+)\.(\d+)", version)
    assert found, version
    return (int(found[1]), int(found[2])) < (1, 40)


def site_port(version: str | None = None) -> int:
    """The SuperLink's port for sites."""
    return FLEET_PORT if speaks_grpc(version) else API_PORT


def superlink(
    keys: Path,
    database: Path,
    *,
    host: str = "0.0.0.0",
    port: int = API_PORT,
    fleet_host: str = "0.0.0.0",
    fleet_port: int = FLEET_PORT,
    version: str | None = None,
) -> list[str]:
    """Start a SuperLink; ``host`` may be narrower than ``fleet_host`` where both differ."""
    grpc = speaks_grpc(version)
    return [
        "flower-superlink",
        *("--host", host if grpc else fleet_host, "--port", str(port)),
        *(
            ("--fleet-api-type", "grpc-rere", "--fleet-api-address", f"{fleet_host}:{fleet_port}")
            if grpc
            else ()
        ),
        *("--isolation", "process", "--enable-supernode-auth", "--database", str(database)),
        *_server_tls(keys),
        "--disable-runtime-dependency-installation",
    ]


def supernode(
    keys: Path,
    superlink: str,
    node_config: Mapping[str, str | int],
    *,
    host: str = "0.0.0.0",
    port: int = NODE_PORT,
    version: str | None = None,
) -> list[str]:
    """Start a SuperNode; ``superlink`` is ``HOST:PORT`` of the SuperLink's port for sites."""
    values = " ".join(
        f"{name}={value}" if isinstance(value, int) else f'{name}="{value}"'
        for name, value in node_config.items()
    )
    return [
        "flower-supernode",
        *(("--grpc-rere",) if speaks_grpc(version) else ()),
        *("--superlink", superlink, "--root-certificates", str(keys / "ca.crt")),
        *("--auth-supernode-private-key", str(keys / "node")),
        *("--isolation", "process", "--host", host, "--port", str(port)),
        *("--node-config", values),
        *_server_tls(keys),
    ]


def superexec(keys: Path, address: str) -> list[str]:
    """Start the executor of a SuperLink's server apps or of a SuperNode's client apps."""
    return [
        "flower-superexec",
        *("--runtime-api-address", address, "--root-certificates", str(keys / "ca.crt")),
        *("--superexec-auth-secret-file", str(keys / "superexec.secret")),
    ]


def _server_tls(keys: Path) -> list[str]:
    return [
        *("--ssl-ca-certfile", str(keys / "ca.crt")),
        *("--ssl-certfile", str(keys / "tls.crt"), "--ssl-keyfile", str(keys / "tls.key")),
        *("--superexec-auth-secret-file", str(keys / "superexec.secret")),
    ]
