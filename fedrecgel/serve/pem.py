"""Certificates and keys in PEM files, looked at before gRPC gets them: it names no file."""

from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from fedrecgel.common.errors import ConfigError


def read_pair(certificate: Path, key: Path) -> tuple[bytes, bytes]:
    """A private key and the certificate chain that belongs to it, in gRPC's order.

    Raises
    ------
    ConfigError
        Naming the file that cannot be read or is not what it should be.
    """
    private, chain = _read(key), _read(certificate)
    try:
        first = x509.load_pem_x509_certificates(chain)[0]
    except ValueError:
        raise ConfigError(f"{certificate} is no certificate (PEM)") from None
    try:
        public = load_pem_private_key(private, None).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(f"{key} is no private key without a password (PEM)") from None
    if public != first.public_key():
        raise ConfigError(f"{key} is not the key of {certificate}; give those made together")
    return private, chain


def read_authority(path: Path) -> bytes:
    """The certificates of an authority.

    Raises
    ------
    ConfigError
        Naming the file when it cannot be read or holds none.
    """
    content = _read(path)
    try:
        x509.load_pem_x509_certificates(content)
    except ValueError:
        raise ConfigError(f"{path} is no certificate of an authority (PEM)") from None
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
