"""Whether an address of a deployment answers over TLS as it should, and if not, why.

Flower's own processes try again for ever, and print a line of BoringSSL at best.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import NameOID

from fedrecgel.common.address import split_address
from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.certificates import names_of

TIMEOUT = 5.0
"""Seconds to wait for an answer."""

# Reasons of OpenSSL (X509_V_ERR_...), as Python passes them on.
_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_NAME = (62, 64)
_OTHER_AUTHORITY = (18, 19, 20, 21, 7)


_TITLE = "SuperLink API"  # what Flower's calls itself
_FLEET_CALL = "/flwr.proto.Fleet/GetRun"  # it changes nothing


class NoAnswer(DeployError):
    """Nothing accepts a connection, or what does stays silent."""


@dataclass(frozen=True)
class Answer:
    """What a server answered.

    Attributes
    ----------
    tls
        Version of TLS, as ``TLSv1.3``.
    protocol
        Chosen by ALPN: ``h2`` is HTTP/2, which gRPC speaks; "" is none.
    """

    tls: str
    protocol: str


def probe(address: str, ca: Path, timeout: float = TIMEOUT) -> Answer:
    """Shake hands with a server, and take its certificate apart if it will not do.

    Parameters
    ----------
    address
        ``host:port``.
    ca
        The authority's certificate, ``ca.crt``.

    Raises
    ------
    DeployError
        With one line: nothing answers, no TLS, expired, another name, another authority.
    """
    host, port = split_address(address)
    context = _context(ca)
    context.set_alpn_protocols(["h2", "http/1.1"])
    try:
        with (
            _reached(address, timeout) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            return Answer(tls.version() or "", tls.selected_alpn_protocol() or "")
    except ssl.SSLCertVerificationError as error:
        raise DeployError(_why_not(host, port, ca, error, timeout)) from None
    except ssl.SSLEOFError:
        raise NoAnswer(f"{address} hangs up during the handshake; is it shutting down?") from None
    except ssl.SSLError as error:
        raise DeployError(f"{address} does not speak TLS ({error.reason or error})") from None


def reach(address: str, timeout: float = TIMEOUT) -> None:
    """Connect to a server and hang up.

    Raises
    ------
    NoAnswer
        When nothing accepts the connection.
    """
    with _reached(address, timeout):
        pass


def speaks_tls(address: str, timeout: float = TIMEOUT) -> bool:
    """Whether what listens at an address speaks TLS, whoever certified it."""
    return _presented(*split_address(address), timeout) is not None


@contextmanager
def _reached(address: str, timeout: float) -> Iterator[socket.socket]:
    try:
        with socket.create_connection(split_address(address), timeout) as plain:
            yield plain
    except ssl.SSLError:
        raise
    except TimeoutError:
        raise NoAnswer(
            f"{address} does not answer within {timeout:g} s; is it running, and its port open?"
        ) from None
    except OSError as error:
        raise NoAnswer(
            f"{address} does not answer ({error.strerror or error}); "
            "is it running, and its port open?"
        ) from None


def distrust(address: str, ca: Path, timeout: float = TIMEOUT) -> str:
    """Why what answers at an address cannot be trusted; "" if it can, or nothing answers yet."""
    try:
        probe(address, ca, timeout)
    except NoAnswer:
        pass
    except DeployError as error:
        return str(error)
    return ""


def is_healthy(address: str, ca: Path, timeout: float = TIMEOUT) -> bool:
    """Whether a SuperLink's or SuperNode's HTTP API says that it is well."""
    host, port = split_address(address)
    connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=_context(ca))
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def flower_of(address: str, ca: Path, timeout: float = TIMEOUT) -> str:
    """The version of Flower behind a SuperLink's API; "" where it does not say, or is another's."""
    host, port = split_address(address)
    connection = http.client.HTTPSConnection(host, port, timeout=timeout, context=_context(ca))
    try:
        connection.request("GET", "/openapi.json")
        about = json.loads(connection.getresponse().read())["info"]
        return str(about["version"]) if about["title"] == _TITLE else ""
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return ""
    finally:
        connection.close()


def offers_fleet(address: str, ca: Path, timeout: float = TIMEOUT) -> bool:
    """Whether a gRPC server has the Fleet API that SuperNodes of Flower 1.39 dial.

    It is asked without proof who asks, and any answer will do but that there is no such call.

    Raises
    ------
    NoAnswer
        When it stays silent.
    """
    import grpc

    host, port = split_address(address)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    trusted = grpc.ssl_channel_credentials(ca.read_bytes())
    # Straight there, as `probe` went.
    options = [("grpc.enable_http_proxy", 0)]
    with grpc.secure_channel(target, trusted, options) as channel:
        try:
            channel.unary_unary(_FLEET_CALL)(b"", timeout=timeout)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise NoAnswer(
                    f"{address} does not answer a call within {timeout:g} s; is it busy?"
                ) from None
            none = (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.UNAVAILABLE)
            # The second: a web server's answer, as gRPC translates it.
            web = str(error.details()).startswith("Received http2 header with status")
            return error.code() not in none and not web
    return True


def _context(ca: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(ca))
    except (OSError, ssl.SSLError) as error:
        raise DeployError(
            f"{ca} is no certificate of an authority ({error}); take ca.crt of the deployment"
        ) from None


def _why_not(
    host: str, port: int, ca: Path, error: ssl.SSLCertVerificationError, timeout: float
) -> str:
    where, presented = f"{host}:{port}", _presented(host, port, timeout)
    if presented is None:
        return f"the certificate of {where} is refused: {error.verify_message}"
    if error.verify_code == _EXPIRED:
        return (
            f"the certificate of {where} expired on {presented.not_valid_after_utc:%Y-%m-%d}; "
            "renew it with: fedrecgel deploy certificates --existing renew"
        )
    if error.verify_code == _NOT_YET_VALID:
        begin = presented.not_valid_before_utc
        return (
            f"the certificate of {where} is valid from {begin:%Y-%m-%d %H:%M} UTC on; "
            "are the clocks of both machines right?"
        )
    if error.verify_code in _OTHER_NAME:
        named = ", ".join(names_of(presented)) or "no name at all"
        return (
            f"the certificate of {where} is for {named}, not for {host}; "
            f"dial one of these, or renew it with: fedrecgel deploy certificates --existing renew "
            f"--superlink-name {host}"
        )
    if error.verify_code in _OTHER_AUTHORITY:
        issuer = presented.issuer.get_attributes_for_oid(NameOID.COMMON_NAME)
        signer = str(issuer[0].value) if issuer else "an unknown authority"
        return (
            f"the certificate of {where} is signed by another '{signer}' than {ca}; take the "
            "ca.crt of this SuperLink's operator"
        )
    return f"the certificate of {where} is refused: {error.verify_message}"


def _presented(host: str, port: int, timeout: float) -> x509.Certificate | None:
    """The certificate that a server shows, unverified: only to say what is wrong with it."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, port), timeout) as plain,
            context.wrap_socket(plain, server_hostname=host) as tls,
        ):
            return x509.load_der_x509_certificate(tls.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return None
