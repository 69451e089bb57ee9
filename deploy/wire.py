"""What a site's container finds at the SuperLink; run it in a SuperNode's container.

Usage: wire.py [ADDRESS ...]; the addresses are those of other sites.

Prints lines of evidence and ends with code 1 if the link is not what the installed Flower should
speak, goes without TLS, or if more than the port for sites can be reached.
"""

import http.client
import socket
import ssl
import sys
from pathlib import Path

import grpc

from fedrecgel.deploy.flower import SuperLink, flower_version, speaks_grpc
from fedrecgel.deploy.probe import probe

CA = Path("/keys/ca.crt")


def grpc_status(address: str) -> str:
    """What a gRPC server says to a call of Flower's Fleet API without a signature."""
    credentials = grpc.ssl_channel_credentials(CA.read_bytes())
    with grpc.secure_channel(address, credentials) as channel:
        call = channel.unary_unary("/flwr.proto.Fleet/PullMessages")
        try:
            call(b"", timeout=5)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


def http_answer(address: str) -> str:
    """Protocol and status of the answer to a request over HTTP/1.1."""
    context = ssl.create_default_context(cafile=str(CA))
    connection = http.client.HTTPSConnection(address, timeout=5, context=context)
    connection.request("GET", "/health")
    answer = connection.getresponse()
    return f"HTTP/{answer.version / 10} {answer.status}"


def reachable(host: str, port: int) -> bool:
    """Whether something accepts a connection."""
    try:
        with socket.create_connection((host, port), 2):
            return True
    except OSError:
        return False


def in_the_clear(address: str) -> bool:
    """Whether a server answers somebody who speaks no TLS."""
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), 3) as plain:
        plain.settimeout(3)
        try:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\x00\x04" + b"\x00" * 5)
            answer = plain.recv(9)
        except OSError:
            return False
    # A frame of settings is what an HTTP/2 server without TLS would begin with.
    return len(answer) == 9 and answer[3] == 4


def main() -> int:
    """Print what there is."""
    version, link = flower_version(), SuperLink()
    address = link.fleet(version)
    answer = probe(address, CA)
    print(f"Flower {version}, {address}: {answer.tls}, ALPN {answer.protocol or 'none'}")
    good = True
    if speaks_grpc(version):
        status = grpc_status(address)
        print(f"a call without signature to /flwr.proto.Fleet/PullMessages: grpc-status {status}")
        good = answer.protocol == "h2" and status != "UNAVAILABLE"
        api = reachable(link.host, link.port)
        print(f"the SuperLink's API at {link.api}: {'REACHABLE' if api else 'cannot be reached'}")
        good = good and not api
    else:
        print(f"GET /health: {http_answer(address)}")
        good = answer.protocol in ("", "http/1.1")
    clear = in_the_clear(address)
    print(f"without TLS: {'ANSWERED' if clear else 'no answer'}")
    good = good and not clear
    for other in sys.argv[1:]:
        host, _, port = other.rpartition(":")
        found = reachable(host, int(port))
        print(f"another site at {other}: {'REACHABLE' if found else 'cannot be reached'}")
        good = good and not found
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
