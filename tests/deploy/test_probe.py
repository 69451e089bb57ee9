"""What is said of a server that cannot be trusted (U029): in one line, within seconds."""

import http.server
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from fedrecgel.common.address import split_address
from fedrecgel.common.errors import ConfigError, DeployError
from fedrecgel.deploy.certificates import Authority
from fedrecgel.deploy.probe import flower_of, is_healthy, offers_fleet, probe

NOW = datetime.now(UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Authority, Path]:
    folder = tmp_path_factory.mktemp("authority")
    return Authority.create(folder), folder / "ca.crt"


@contextmanager
def server(folder: Path, pair: tuple[bytes, bytes] | None) -> Iterator[str]:
    """A server with this certificate and key, or one that speaks no TLS; its address."""
    context = None
    if pair is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["h2"])
        (folder / "tls.crt").write_bytes(pair[0])
        (folder / "tls.key").write_bytes(pair[1])
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
                except OSError:
                    return
                with plain:
                    try:
                        if context is None:
                            plain.sendall(b"220 ready\r\n")
                            continue
                        with context.wrap_socket(plain, server_side=True) as tls:
                            tls.recv(1)
                    except OSError:
                        pass

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_a_good_server_is_what_it_says(tmp_path: Path, authority: tuple[Authority, Path]) -> None:
    signer, ca = authority
    with server(tmp_path, signer.issue(["127.0.0.1"])) as address:
        answer = probe(address, ca)
        assert (answer.tls, answer.protocol) == ("TLSv1.3", "h2")
        assert not is_healthy(address, ca)  # it speaks no HTTP
        assert flower_of(address, ca) == ""


def test_a_server_of_tls_alone_has_no_fleet_api(
    tmp_path: Path, authority: tuple[Authority, Path]
) -> None:
    signer, ca = authority
    with server(tmp_path, signer.issue(["127.0.0.1"])) as address:
        assert not offers_fleet(address, ca)


@pytest.mark.parametrize("service", ["flwr.proto.Fleet", "fedrecgel.Recommender"])
def test_a_fleet_api_is_known_by_its_calls(authority: tuple[Authority, Path], service: str) -> None:
    """It refuses who does not say who they are, and that is answer enough."""

    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "Missing authentication metadata")
        raise AssertionError

    signer, ca = authority
    certificate, key = signer.issue(["127.0.0.1"])
    with ThreadPoolExecutor(1) as pool:
        running = grpc.server(pool)
        calls = {"GetRun": grpc.unary_unary_rpc_method_handler(refuse)}
        running.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, calls),))
        credentials = grpc.ssl_server_credentials([(key, certificate)])
        port = running.add_secure_port("127.0.0.1:0", credentials)
        running.start()
        assert offers_fleet(f"127.0.0.1:{port}", ca) == (service == "flwr.proto.Fleet")
        running.stop(None).wait()


@pytest.mark.parametrize(
    ("title", "version"), [("SuperLink API", "1.42.0"), ("SuperNode API", ""), ("Shop", "")]
)
def test_only_a_superlinks_api_tells_a_version(
    tmp_path: Path, authority: tuple[Authority, Path], title: str, version: str
) -> None:
    body = json.dumps({"info": {"title": title, "version": "1.42.0"}}).encode()

    class Api(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *words: object) -> None: ...

    signer, ca = authority
    for name, content in zip(("crt", "key"), signer.issue(["127.0.0.1"]), strict=True):
        (tmp_path / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    with http.server.HTTPServer(("127.0.0.1", 0), Api) as running:
        running.socket = context.wrap_socket(running.socket, server_side=True)
        thread = threading.Thread(target=running.handle_request)
        thread.start()
        assert flower_of(f"127.0.0.1:{running.server_port}", ca) == version
        thread.join(5)


def test_an_expired_certificate(tmp_path: Path, authority: tuple[Authority, Path]) -> None:
    signer, ca = authority
    pair = signer.issue(["127.0.0.1"], days=1, begin=NOW - timedelta(days=3))
    with (
        server(tmp_path, pair) as address,
        pytest.raises(DeployError, match=r"expired on 20\d\d-\d\d-\d\d; renew it"),
    ):
        probe(address, ca)


def test_a_certificate_of_tomorrow(tmp_path: Path, authority: tuple[Authority, Path]) -> None:
    signer, ca = authority
    pair = signer.issue(["127.0.0.1"], begin=NOW + timedelta(days=1))
    with server(tmp_path, pair) as address, pytest.raises(DeployError, match="clocks"):
        probe(address, ca)


def test_another_name_is_named_with_the_names_presented(
    tmp_path: Path, authority: tuple[Authority, Path]
) -> None:
    signer, ca = authority
    with (
        server(tmp_path, signer.issue(["superlink", "10.0.0.7"])) as address,
        pytest.raises(DeployError, match=r"is for superlink, 10\.0\.0\.7, not for 127\.0\.0\.1"),
    ):
        probe(address, ca)


def test_another_authority(tmp_path: Path, authority: tuple[Authority, Path]) -> None:
    other = Authority.create(tmp_path / "other")
    with (
        server(tmp_path, other.issue(["127.0.0.1"])) as address,
        pytest.raises(DeployError, match="signed by another 'fedrecgel authority' than"),
    ):
        probe(address, authority[1])


def test_no_tls_is_never_fallen_back_to(tmp_path: Path, authority: tuple[Authority, Path]) -> None:
    with (
        server(tmp_path, None) as address,
        pytest.raises(DeployError, match="does not speak TLS"),
    ):
        probe(address, authority[1])


def test_nothing_there(authority: tuple[Authority, Path]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and not listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(DeployError, match=r"does not answer \(Connection refused\)"):
            probe(address, authority[1])


def test_a_silent_server_is_given_up(authority: tuple[Authority, Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(DeployError, match=r"does not answer within 0\.2 s"):
            probe(address, authority[1], timeout=0.2)


def test_a_file_that_is_no_authority_is_named(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("hello")
    for path in (tmp_path / "ca.crt", tmp_path / "none"):
        with pytest.raises(DeployError, match="is no certificate of an authority"):
            probe("127.0.0.1:1", path)


@pytest.mark.parametrize(
    "text", ["superlink", "superlink:", ":8000", "[]:8000", "x:99999", "x:http", "x:" + "9" * 5000]
)
def test_an_address_needs_host_and_port(text: str) -> None:
    with pytest.raises(ConfigError, match="is no address; give HOST:PORT"):
        split_address(text)


@pytest.mark.parametrize("host", ["a..b", ".a", "x" * 64, "\udcff"])
def test_a_name_that_no_machine_can_have_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="is no name of a machine"):
        split_address(f"{host}:8000")


def test_an_address_of_ipv6() -> None:
    assert split_address("[::1]:8000") == ("::1", 8000)
