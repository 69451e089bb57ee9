"""The gRPC server: the service with health and reflection, TLS, and an end that drops nobody."""

import ipaddress
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import grpc

from fedrecgel.common.address import split_address
from fedrecgel.common.errors import ConfigError
from fedrecgel.serve.current import Current
from fedrecgel.serve.listening import why_not
from fedrecgel.serve.pem import read_authority, read_pair

SERVICE = "fedrecgel.v1.Recommender"
WORKERS = 16
"""Requests in work at once: more than can wait for a fit, so that the others go on."""
QUEUE = 256
"""Requests at once; more are refused with RESOURCE_EXHAUSTED rather than answered late."""
GRACE = 10.0
"""Seconds that requests in work have when the server is told to stop."""


@dataclass(frozen=True)
class Tls:
    """PEM files; with ``client_ca`` only clients with a certificate of that authority get in."""

    certificate: Path
    key: Path
    client_ca: Path | None = None

    def credentials(self) -> grpc.ServerCredentials:
        """The server's credentials.

        Raises
        ------
        ConfigError
            Naming the file that will not do.
        """
        pair = read_pair(self.certificate, self.key)
        root = None if self.client_ca is None else read_authority(self.client_ca)
        return grpc.ssl_server_credentials(
            [pair], root_certificates=root, require_client_auth=root is not None
        )


class Server:
    """A server that listens from `start` to `stop`.

    Parameters
    ----------
    address
        ``host:port`` (port 0: a free one) or ``unix:PATH``.
    tls
        None: no encryption, which only loopback addresses have unless ``plaintext``.

    Raises
    ------
    ConfigError
        When the address cannot be had, or a certificate or key will not do.
    """

    def __init__(
        self, current: Current, address: str, tls: Tls | None = None, *, plaintext: bool = False
    ) -> None:
        from grpc_health.v1 import health, health_pb2, health_pb2_grpc

        from fedrecgel.serve.recommender_pb2_grpc import add_RecommenderServicer_to_server
        from fedrecgel.serve.service import Service

        if address == "unix:":
            raise ConfigError("'unix:' names no socket; give unix:PATH")
        if not address.startswith("unix:"):
            split_address(address, lowest=0)
        if tls is None and not plaintext and not is_loopback(address):
            raise ConfigError(
                f"{address} can be reached from elsewhere: give --tls-cert and --tls-key, or "
                "--plaintext where everybody on that network may read along"
            )
        self._current = current
        self._states = health_pb2.HealthCheckResponse
        self._health = health.HealthServicer()
        self._server = grpc.server(
            ThreadPoolExecutor(WORKERS, "answer"),
            # Two servers on one port would share its requests at random.
            options=[("grpc.so_reuseport", 0)],
            maximum_concurrent_rpcs=QUEUE,
        )
        add_RecommenderServicer_to_server(Service(current), self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        _reflect(self._server, health.SERVICE_NAME)
        current.on_ready = self._tell
        self._tell()
        self.port = self._bind(address, tls)
        named = address.startswith("unix:")
        self.address = address if named else f"{address.rpartition(':')[0]}:{self.port}"

    def _bind(self, address: str, tls: Tls | None) -> int:
        credentials = None if tls is None else tls.credentials()
        try:
            if credentials is None:
                port: int = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise ConfigError(f"cannot listen on {address}: {why_not(address)}")
        return port

    def _tell(self) -> None:
        """The service serves once there is a model; the server as such from the start."""
        ready = self._states.SERVING if self._current.ready else self._states.NOT_SERVING
        self._health.set("", self._states.SERVING)
        self._health.set(SERVICE, ready)

    def start(self) -> None:
        """Answer from now on."""
        self._server.start()

    def stop(self, grace: float = GRACE) -> None:
        """Take no new requests, finish those in work."""
        self._health.enter_graceful_shutdown()
        self._server.stop(grace).wait()
        self._current.close()


LOOK = 0.25
"""Seconds between two looks for a signal."""


def run_until_told(server: Server, on_start: Callable[[], None]) -> None:
    """Serve until SIGTERM or SIGINT, then stop gracefully."""
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        told.set()

    before = {s: signal.signal(s, tell) for s in (signal.SIGTERM, signal.SIGINT)}
    try:
        server.start()
        on_start()
        # A signal that comes just before a wait, or to a thread of gRPC's, does not end the wait,
        # and Python runs its handler only after it.
        while not told.wait(LOOK):
            pass
    finally:
        server.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def is_loopback(address: str) -> bool:
    """Whether only this machine can reach an address."""
    if address.startswith("unix:"):
        return True
    host, _ = split_address(address, lowest=0)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _reflect(server: grpc.Server, *others: str) -> None:
    from grpc_reflection.v1alpha import reflection

    names = (SERVICE, *others, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, server)
