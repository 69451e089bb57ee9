"""The health check of a container: well only if the API says so over TLS, and cheap."""

import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from fedrecgel.deploy import health
from fedrecgel.deploy.certificates import Authority


class Api(BaseHTTPRequestHandler):
    """Answers what its server holds as status."""

    def do_GET(self) -> None:
        self.send_response(self.server.status if self.path == "/health" else 404)  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def api(tmp_path: Path) -> Iterator[HTTPServer]:
    authority = Authority.create(tmp_path)
    certificate, key = authority.issue(["127.0.0.1"])
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    with HTTPServer(("127.0.0.1", 0), Api) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.status = 200  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


def look(address: str, ca: Path) -> tuple[int, str]:
    """Exit code and words of the check as the compose file has it."""
    command = [sys.executable, "-IS", health.__file__, address, str(ca)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.stderr
    return done.returncode, done.stdout.strip()


def test_well_is_what_says_so(api: HTTPServer, tmp_path: Path) -> None:
    address = f"127.0.0.1:{api.server_port}"
    assert look(address, tmp_path / "ca.crt") == (0, "")
    api.status = 503  # type: ignore[attr-defined]
    assert look(address, tmp_path / "ca.crt") == (1, f"{address} answers 503")


def test_who_cannot_be_trusted_or_reached_is_not_well(api: HTTPServer, tmp_path: Path) -> None:
    Authority.create(tmp_path / "other")
    code, said = look(f"127.0.0.1:{api.server_port}", tmp_path / "other" / "ca.crt")
    assert code == 1
    assert "CERTIFICATE_VERIFY_FAILED" in said
    code, said = look("127.0.0.1:1", tmp_path / "ca.crt")
    assert code == 1
    assert "Connection refused" in said
