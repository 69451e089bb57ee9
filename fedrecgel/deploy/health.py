"""Whether an API of Flower's says over TLS that it is well: the health check of a container.

Usage: ``python -IS health.py HOST:PORT CA``; ends with code 0 if it is, else says why not. It needs
the standard library alone, so that one look is cheap enough to be taken every few seconds.
"""

import socket
import ssl
import sys

TIMEOUT = 2.5
"""Seconds to wait for an answer."""


def answer(address: str, ca: str, timeout: float = TIMEOUT) -> str:
    """Status of the answer to ``GET /health``, such as ``200``.

    Raises
    ------
    OSError
        When nothing answers, or cannot be trusted.
    """
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    request = f"GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    with (
        socket.create_connection((host, int(port)), timeout) as plain,
        context.wrap_socket(plain, server_hostname=host) as tls,
    ):
        tls.sendall(request.encode())
        return tls.recv(64).decode(errors="replace").partition(" ")[2][:3]


def main(address: str, ca: str) -> int:
    """Exit code of the check."""
    try:
        status = answer(address, ca)
    except OSError as error:
        print(f"{address}: {error}")
        return 1
    if status != "200":
        print(f"{address} answers {status or 'nothing'}")
    return int(status != "200")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
