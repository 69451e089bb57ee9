"""The one-shot of a compose file: keys for every container, and made data if none are given.

Every folder below ``keys`` is a volume of its own, so that a container mounts its keys and no
other's. Beside the folders of `fedrecgel.deploy.certificates` there are ``server-app`` and
``NAME-app`` for executors, who need the authority's certificate and the secret that they share with
their SuperLink or SuperNode but none of its keys, ``NAME-serve`` with a certificate for the site's
recommendations, and ``public`` for whoever registers nodes. Doing it again changes nothing, but
renews certificates that are about to expire.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from fedrecgel.common.data.prepare import prepare
from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.certificates import (
    LOOPBACK,
    Authority,
    check_names,
    lacking,
    make_certificates,
    read_certificate,
    write_private,
)
from fedrecgel.deploy.sites import CATALOGUE, INTERACTIONS, write_sites
from fedrecgel.deploy.start import check_writable

RENEW = timedelta(days=30)
"""A certificate that is valid for less is renewed."""

USERS = 200
"""Users of made data."""


def make_keys(keys: Path, sites: Sequence[str], superlink_names: Sequence[str]) -> None:
    """Fill the folders below ``keys``.

    Raises
    ------
    DeployError
        When a name will not do, a folder does not take files, or holds an authority that has
        expired.
    """
    check_names(sites, superlink_names)
    folders = ["authority", "public", "superlink", "server-app", *sites]
    folders += [f"{site}-{kind}" for site in sites for kind in ("app", "serve")]
    twice = [name for name, count in Counter(folders).items() if count > 1]
    if twice:
        raise DeployError(
            f"two containers would have the folder {keys / twice[0]}; give the site another name"
        )
    check_writable(keys / name for name in folders)
    make_certificates(
        keys,
        sites,
        superlink_names=superlink_names,
        existing="renew" if _wanting(keys, sites, superlink_names) else "keep",
    )
    _copy(keys / "authority", keys / "public", "ca.crt")
    _copy(keys / "superlink", keys / "server-app", "ca.crt", "superexec.secret")
    authority = Authority.open(keys / "authority")
    for site in sites:
        _copy(keys / site, keys / f"{site}-app", "ca.crt", "superexec.secret")
        _copy(keys / site, keys / f"{site}-serve", "ca.crt")
        _certify(keys / f"{site}-serve", authority)
        shutil.copy(keys / site / "node.pub", keys / "public" / f"{site}.pub")


def make_data(folder: Path, sites: Sequence[str]) -> bool:
    """Invent interactions for ``folder/SITE`` and their ``folder/catalogue``; False if there.

    Raises
    ------
    DeployError
        When a folder does not take files.
    """
    catalogue = folder / "catalogue"
    targets = [folder / site for site in sites]
    check_writable([catalogue, *targets])
    if all((target / INTERACTIONS).exists() for target in targets):
        return False
    with tempfile.TemporaryDirectory() as scratch:
        data = prepare("synthetic", Path(scratch) / "data", users=USERS)
        for made, target in zip(write_sites(data, Path(scratch), sites), targets, strict=True):
            shutil.copy(made.file, target)
        shutil.copy(Path(scratch) / CATALOGUE, catalogue)
    return True


def _certify(folder: Path, authority: Authority) -> None:
    """A certificate for a server that is dialled by the folder's name."""
    there = all((folder / name).exists() for name in ("tls.crt", "tls.key"))
    if there and not _expires(folder.parent, [folder.name]):
        return
    certificate, key = authority.issue([folder.name, *LOOPBACK])
    write_private(folder / "tls.key", key)
    (folder / "tls.crt").write_bytes(certificate)


def _wanting(keys: Path, sites: Sequence[str], superlink_names: Sequence[str]) -> bool:
    """Whether a certificate is about to expire, or the SuperLink's lacks a name."""
    own = keys / "superlink" / "tls.crt"
    missing = own.exists() and lacking(read_certificate(own), superlink_names)
    return bool(missing) or _expires(keys, ["superlink", *sites])


def _expires(keys: Path, machines: Sequence[str]) -> bool:
    found = [keys / name / "tls.crt" for name in machines]
    soon = datetime.now(UTC) + RENEW
    there = (read_certificate(path) for path in found if path.exists())
    return any(certificate.not_valid_after_utc < soon for certificate in there)


def _copy(source: Path, target: Path, *names: str) -> None:
    for name in names:
        temporary = target / f".{name}.tmp"
        shutil.copy2(source / name, temporary)
        temporary.replace(target / name)
