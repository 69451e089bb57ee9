"""Certificates and keys of a deployment: an authority of its own, one folder per machine.

::

    authority/  ca.crt  ca.key                            stays with the operator
    superlink/  ca.crt  tls.crt  tls.key  superexec.secret
    NAME/       ca.crt  tls.crt  tls.key  superexec.secret  node  node.pub        one per site

A machine gets its own folder and nothing else. ``tls.crt`` names the addresses at which the
machine is dialled: the SuperLink by sites, a SuperNode by its own SuperExec. ``node`` is the key
that a SuperNode proves itself with (ECDSA on P-384 in OpenSSH's form, which is what
``flower-supernode --auth-supernode-private-key`` reads), ``node.pub`` what
``flwr supernode register`` takes. ``superexec.secret`` is shared by a SuperLink or SuperNode and
the SuperExec beside it. Keys and secrets have mode 0600.
"""

import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import SSHPublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedrecgel.common.errors import DeployError
from fedrecgel.common.target import check_folder

DAYS, AUTHORITY_DAYS = 365, 3650
"""Days that certificates are valid, and the authority's own."""

LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""Names that every certificate holds besides its own."""

Existing = Literal["refuse", "keep", "renew"]
"""What to do where a machine's folder is there: raise, make only files that it lacks, or make new
certificates of the same authority, for the names of the old ones and those that are given. Node
keys and secrets are never made anew: they are registered elsewhere."""

_HOST_NAME = r"(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9])?"
_SKEW = timedelta(minutes=10)  # clocks of machines differ
_AUTHORITY, _SUPERLINK = "authority", "superlink"


@dataclass(frozen=True)
class Authority:
    """A certificate authority that signs for one deployment."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def create(
        cls, folder: Path, days: int = AUTHORITY_DAYS, begin: datetime | None = None
    ) -> "Authority":
        """Make an authority and keep it in ``folder`` as ``ca.crt`` and ``ca.key``.

        Raises
        ------
        DeployError
            When one is there: replacing it would cut off every machine that trusts it.
        """
        if (folder / "ca.key").exists() or (folder / "ca.crt").exists():
            raise DeployError(f"{folder} holds an authority; take it, or give another folder")
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedrecgel authority")])
        builder = _builder(name, name, key.public_key(), key.public_key(), days, begin)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_private(folder / "ca.key", _pem(key))
        (folder / "ca.crt").write_bytes(_encoded(certificate))
        return cls(certificate, key)

    @classmethod
    def open(cls, folder: Path) -> "Authority":
        """Read an authority that `create` made.

        Raises
        ------
        DeployError
            When it is missing, damaged or expired.
        """
        try:
            certificate = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
            key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
        except (OSError, TypeError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "damaged"
            raise DeployError(
                f"{folder} holds no usable authority (ca.crt, ca.key: {reason}); bring both back"
            ) from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise DeployError(f"{folder / 'ca.key'} is not an elliptic curve key of ours")
        if certificate.not_valid_after_utc < datetime.now(UTC):
            raise DeployError(
                f"the authority in {folder} expired on {certificate.not_valid_after_utc:%Y-%m-%d}; "
                "make a new deployment folder and hand its files to all sites"
            )
        return cls(certificate, key)

    def issued(self, certificate: x509.Certificate) -> bool:
        """Whether this authority signed a certificate."""
        try:
            certificate.verify_directly_issued_by(self.certificate)
        except (InvalidSignature, TypeError, ValueError):
            return False
        return True

    def issue(
        self,
        names: Sequence[str],
        *,
        days: int = DAYS,
        begin: datetime | None = None,
        client: bool = False,
    ) -> tuple[bytes, bytes]:
        """A server certificate (or a client's) and its key, both PEM.

        Parameters
        ----------
        names
            Host names and IP addresses under which the server is dialled; the first is also the
            common name, which no client looks at. Duplicates are dropped.
        begin
            Start of validity; default: ten minutes ago.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
        issuer = self.certificate
        purpose = ExtendedKeyUsageOID.CLIENT_AUTH if client else ExtendedKeyUsageOID.SERVER_AUTH
        builder = _builder(
            subject, issuer.subject, key.public_key(), self.key.public_key(), days, begin
        )
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.SubjectAlternativeName(_alternatives(names)), critical=False)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return _encoded(certificate), _pem(key)


def make_certificates(
    folder: Path,
    sites: Iterable[str],
    *,
    superlink_names: Sequence[str] = (),
    site_names: Mapping[str, Sequence[str]] | None = None,
    days: int = DAYS,
    existing: Existing = "refuse",
) -> None:
    """Make the folders of a SuperLink and of its sites, and the authority where none is there yet.

    Parameters
    ----------
    sites
        Names of the sites: letters, digits, hyphens, dots.
    superlink_names
        Host names and IP addresses at which sites and users reach the SuperLink, besides
        ``superlink``, this machine's own name and the loopback names.
    site_names
        For each site further names at which its SuperExec dials the SuperNode, besides the site's
        name and the loopback names.
    days
        Validity of the certificates of machines, 1 to `AUTHORITY_DAYS`.
    existing
        See `Existing`.

    Raises
    ------
    DeployError
        When a folder is there and ``existing`` is ``refuse``, when it holds what is damaged or of
        another authority or the authority is away, when ``superlink_names`` has one that a
        certificate to keep lacks, or a name or ``days`` will not do. Nothing is made then.
    """
    if not 1 <= days <= AUTHORITY_DAYS:
        raise DeployError(
            f"certificates are valid for 1 to {AUTHORITY_DAYS:,} days, as long as the authority's "
            f"own, not {days}"
        )
    sites = list(sites)
    check_names(sites, superlink_names)
    own = folder / _AUTHORITY
    places = [own, *(folder / name for name in (_SUPERLINK, *sites))]
    # Where each is a volume of its own, nothing is made beside them.
    if not all(map(Path.is_dir, places)):
        _check_place(folder)
    for place in places:
        _check_place(place)
    there = [name for name in (_SUPERLINK, *sites) if _has(folder / name, "tls.crt", "tls.key")]
    if there and existing == "refuse":
        raise DeployError(
            f"{folder / there[0]} is there; keep what it holds (--existing keep), renew its "
            "certificate (--existing renew), or give another folder"
        )
    hosts = {_SUPERLINK: [_SUPERLINK, *superlink_names, *_own_name(), *LOOPBACK]}
    for name in sites:
        hosts[name] = [name, *(site_names or {}).get(name, ()), *LOOPBACK]
        _check_node_key(folder / name)
    for name in there:
        if not (folder / name / "tls.crt").exists():
            continue
        held = read_certificate(folder / name / "tls.crt")
        hosts[name] += names_of(held)
        missing = lacking(held, superlink_names) if name == _SUPERLINK else []
        if existing == "keep" and missing:
            raise DeployError(
                f"{folder / name / 'tls.crt'} does not name {', '.join(missing)}; renew it: "
                "--existing renew"
            )
        if existing == "keep":
            _check_key(folder / name, held)
    for names in hosts.values():
        _alternatives(names)  # refused before anything is made
    authority = _authority_of(folder, hosts)
    for name, names in hosts.items():
        _make_machine(
            folder / name,
            authority,
            names,
            days,
            keep=existing == "keep",
            with_node_key=name != _SUPERLINK,
        )


def check_names(sites: Sequence[str], superlink_names: Sequence[str]) -> None:
    """Refuse names of sites and of the SuperLink that will not do.

    Raises
    ------
    DeployError
        Naming the first.
    """
    for name in sites:
        _check_site(name)
    if len(set(sites)) < len(sites):
        raise DeployError("two sites have the same name; give each site its own")
    _alternatives(superlink_names)


def _check_place(folder: Path) -> None:
    """Refuse what is no folder, or one that takes no files."""
    check_folder(folder)
    if folder.exists() and not os.access(folder, os.W_OK | os.X_OK):
        raise DeployError(
            f"{folder} cannot be written; let it belong to you, or give another --out"
        )


def _has(folder: Path, *names: str) -> bool:
    return any((folder / name).exists() for name in names)


def _check_node_key(folder: Path) -> None:
    """Refuse a public node key whose private one is lost: a new one would be registered nowhere."""
    if (folder / "node.pub").exists() and not (folder / "node").exists():
        wrong = "is not there"
    elif (folder / "node").exists() and _public_node_key(folder) is None:
        wrong = "is damaged, or no key of ours"
    else:
        return
    raise DeployError(
        f"{folder / 'node'} {wrong}; bring it back, or remove both it and node.pub for a new key, "
        "and register that"
    )


def _check_key(folder: Path, certificate: x509.Certificate) -> None:
    """Refuse a key that does not fit its certificate."""
    path = folder / "tls.key"
    if not path.exists():
        return
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
        fits = key.public_key() == certificate.public_key()
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm):
        fits = False
    if not fits:
        raise DeployError(
            f"{path} is not the key of the tls.crt beside it; make both anew: --existing renew"
        )


def _authority_of(folder: Path, named: Iterable[str]) -> Authority:
    """The authority of a deployment: a new one only where no machine trusts another.

    Raises
    ------
    DeployError
        When it is away, or is not the one of the machines that are there.
    """
    own = folder / _AUTHORITY
    ours = {path.parent for path in folder.glob("*/superexec.secret")}
    ours |= {folder / name for name in named if _has(folder / name, "ca.crt", "tls.crt", "tls.key")}
    if not _has(own, "ca.crt", "ca.key"):
        if ours:
            raise DeployError(
                f"{own} is not there but {min(ours)} is, which trusts no other authority; bring "
                "the folder back for this, or give another --out for a new federation"
            )
        return Authority.create(own)
    authority = Authority.open(own)
    for machine in sorted(ours):
        for path in filter(Path.exists, (machine / "ca.crt", machine / "tls.crt")):
            found = read_certificate(path)
            if found != authority.certificate and (
                path.name == "ca.crt" or not authority.issued(found)
            ):
                raise DeployError(
                    f"{path} is of another authority than the one in {own}; bring that back, or "
                    "give another --out for a new federation"
                )
    return authority


def read_certificate(path: Path) -> x509.Certificate:
    """A certificate from its PEM file.

    Raises
    ------
    DeployError
        When it is missing or damaged.
    """
    try:
        return x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise DeployError(f"{path} is no certificate that can be read ({error.strerror})") from None
    except ValueError:
        raise DeployError(
            f"{path} is no certificate: it is empty or damaged; put a copy back, or remove it and "
            "have one made for the names that you give (deploy certificates --existing keep)"
        ) from None


def names_of(certificate: x509.Certificate) -> list[str]:
    """Host names and addresses that a certificate is for."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    addresses = found.get_values_for_type(x509.IPAddress)
    return [*found.get_values_for_type(x509.DNSName), *map(str, addresses)]


def lacking(certificate: x509.Certificate, names: Iterable[str]) -> list[str]:
    """Those of the names that a certificate is not for."""
    held = _alternatives(names_of(certificate))
    return [name for name in names if _alternatives([name])[0] not in held]


def _make_machine(
    folder: Path,
    authority: Authority,
    names: Sequence[str],
    days: int,
    *,
    keep: bool,
    with_node_key: bool,
) -> None:
    """Write a machine's files, or with ``keep`` those that it lacks."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not (keep and (folder / "ca.crt").exists()):
        (folder / "ca.crt").write_bytes(_encoded(authority.certificate))
    if not (keep and (folder / "tls.crt").exists() and (folder / "tls.key").exists()):
        certificate, key = authority.issue(names, days=days)
        (folder / "tls.crt").write_bytes(certificate)
        write_private(folder / "tls.key", key)
    secret = folder / "superexec.secret"
    if not secret.exists() or not secret.stat().st_size:
        write_private(secret, secrets.token_hex(32).encode())
    if with_node_key and not (folder / "node").exists():
        private, public = make_node_key(folder.name)
        write_private(folder / "node", private)
        (folder / "node.pub").write_bytes(public)
    elif with_node_key and not (folder / "node.pub").exists():
        (folder / "node.pub").write_bytes(_public_node_key(folder) or b"")


def _public_node_key(folder: Path) -> bytes | None:
    """What belongs into ``node.pub``; None where ``node`` cannot be read."""
    try:
        private = serialization.load_ssh_private_key((folder / "node").read_bytes(), None)
    except (OSError, TypeError, ValueError, UnsupportedAlgorithm):
        return None
    return _public(private.public_key(), folder.name)


def make_node_key(comment: str) -> tuple[bytes, bytes]:
    """A private and a public node key, as ``ssh-keygen -t ecdsa -b 384`` makes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    return private, _public(key.public_key(), comment)


def _public(key: SSHPublicKeyTypes, comment: str) -> bytes:
    encoding, form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    return key.public_bytes(encoding, form) + f" {comment}\n".encode()


def _check_site(name: str) -> None:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.-]*", name) or len(name) > 63:
        raise DeployError(
            f"'{name}' cannot name a site: letters, digits, dots and hyphens, at most 63"
        )
    if name in (_AUTHORITY, _SUPERLINK):
        raise DeployError(f"a site cannot be called '{name}': that folder has another purpose")


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    signer: ec.EllipticCurvePublicKey,
    days: int,
    begin: datetime | None = None,
) -> x509.CertificateBuilder:
    begin = begin or datetime.now(UTC) - _SKEW
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        # Python 3.13 verifies strictly: a certificate must say who signed it.
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _own_name() -> list[str]:
    """The name of this machine, if it can stand in a certificate."""
    name = socket.gethostname()
    return [name] if re.fullmatch(_HOST_NAME, name) else []


def _alternatives(names: Sequence[str]) -> list[x509.GeneralName]:
    found: list[x509.GeneralName] = []
    for name in dict.fromkeys(names):
        try:
            found.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            if not re.fullmatch(_HOST_NAME, name):
                raise DeployError(
                    f"'{name}' is neither a host name nor an IP address; give names without port"
                ) from None
            found.append(x509.DNSName(name))
    return found


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _encoded(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def write_private(path: Path, content: bytes) -> None:
    """Write beside the target with mode 0600 from the first byte, then take its place."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with open(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        file.write(content)
    os.replace(temporary, path)
