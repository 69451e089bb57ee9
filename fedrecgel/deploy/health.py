"""Whether a server says over TLS that it is well: the health check of a container.

Usage: ``python -IS health.py HOST:PORT CA [SERVICE]``; ends with code 0 if it is, else says why
not. An API of Flower's is asked by ``GET /health``; with a service the standard health service of
gRPC, over as much of HTTP/2 as one call takes. It needs the standard library alone, so that one
look is cheap enough to be taken every few seconds.
"""

import socket
import ssl
import sys

TIMEOUT = 2.5
"""Seconds to wait for an answer."""


def _connected(address: str, ca: str, timeout: float, *protocols: str) -> ssl.SSLSocket:
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    plain = socket.create_connection((host, int(port)), timeout)
    try:
        return context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise


def answer(address: str, ca: str, timeout: float = TIMEOUT) -> str:
    """Status of the answer to ``GET /health``, such as ``200``.

    Raises
    ------
    OSError
        When nothing answers, or cannot be trusted.
    """
    request = f"GET /health HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    with _connected(address, ca, timeout) as tls:
        tls.sendall(request.encode())
        return tls.recv(64).decode(errors="replace").partition(" ")[2][:3]


def serves(address: str, ca: str, service: str, timeout: float = TIMEOUT) -> bool:
    """Whether a server's ``grpc.health.v1.Health`` says that a service is SERVING.

    Raises
    ------
    OSError
        As `answer`.
    """
    with _connected(address, ca, timeout, "h2") as tls, tls.makefile("rb") as replies:
        tls.sendall(_call(address, service))
        while len(head := replies.read(9)) == 9:
            kind, body = head[3], replies.read(int.from_bytes(head[:3], "big"))
            if kind == _DATA:
                return body[5:] == _SERVING
            if kind == _GO_AWAY or (kind == _HEADERS and head[4] & _END_STREAM):
                break
    return False


_DATA, _HEADERS, _SETTINGS, _GO_AWAY = 0, 1, 4, 7  # kinds of frames
_END_STREAM, _END_HEADERS = 1, 4
_SERVING = b"\x08\x01"
"""A HealthCheckResponse with status SERVING."""


def _call(address: str, service: str) -> bytes:
    """All that a client sends for one call: preface, settings, headers, a HealthCheckRequest."""
    headers = {
        ":method": "POST",
        ":scheme": "https",
        ":path": "/grpc.health.v1.Health/Check",
        ":authority": address,
        "te": "trailers",
        "content-type": "application/grpc",
    }
    # Each a literal that is not indexed (RFC 7541, 6.2.2); no text is as long as 127 bytes.
    pairs = (b"\0" + _text(name) + _text(value) for name, value in headers.items())
    request = b"\x0a" + _text(service)
    message = b"\0" + len(request).to_bytes(4, "big") + request
    return b"".join(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _frame(_SETTINGS, 0, 0, b""),
            _frame(_HEADERS, _END_HEADERS, 1, b"".join(pairs)),
            _frame(_DATA, _END_STREAM, 1, message),
        )
    )


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + body


def _text(text: str) -> bytes:
    return bytes((len(text),)) + text.encode()


def main(address: str, ca: str, service: str = "") -> int:
    """Exit code of the check."""
    try:
        if service:
            status = "200" if serves(address, ca, service) else "NOT_SERVING"
        else:
            status = answer(address, ca)
    except OSError as error:
        print(f"{address}: {error}")
        return 1
    if status != "200":
        print(f"{address} answers {status or 'nothing'}")
    return int(status != "200")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
