"""Certificates and keys: what they name, who may read them; nothing is replaced silently."""

import ipaddress
import shutil
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedrecgel.common.errors import DeployError, FedRecError
from fedrecgel.deploy.certificates import (
    Authority,
    Existing,
    make_certificates,
    names_of,
    read_certificate,
)

MACHINE = {"ca.crt", "tls.crt", "tls.key", "superexec.secret"}


def names(path: Path) -> set[str]:
    return set(names_of(read_certificate(path)))


def test_each_machine_gets_a_folder_with_what_it_needs_and_no_more(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["site-1", "site-2"])
    assert {p.name for p in tmp_path.iterdir()} == {"authority", "superlink", "site-1", "site-2"}
    assert {p.name for p in (tmp_path / "superlink").iterdir()} == MACHINE
    assert {p.name for p in (tmp_path / "site-1").iterdir()} == MACHINE | {"node", "node.pub"}


def test_names_and_addresses_stand_in_the_certificate(tmp_path: Path) -> None:
    # U029: a common name alone is not looked at by any client.
    make_certificates(
        tmp_path, ["a"], superlink_names=["10.1.2.3", "fl.example.org"], site_names={"a": ["node"]}
    )
    loopback = {"localhost", "127.0.0.1", "::1"}
    assert names(tmp_path / "superlink" / "tls.crt") >= loopback | {
        "superlink",
        "10.1.2.3",
        "fl.example.org",
    }
    assert names(tmp_path / "a" / "tls.crt") == loopback | {"a", "node"}


def test_certificates_are_signed_by_the_authority_and_valid_now(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a"], days=30)
    authority = Authority.open(tmp_path / "authority")
    for machine in ("superlink", "a"):
        certificate = read_certificate(tmp_path / machine / "tls.crt")
        certificate.verify_directly_issued_by(authority.certificate)
        left = certificate.not_valid_after_utc - datetime.now(UTC)
        assert timedelta(days=29) < left < timedelta(days=30)
        assert certificate.not_valid_before_utc < datetime.now(UTC)


def test_keys_are_for_their_owner_alone(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a"])
    private = [p for p in tmp_path.rglob("*") if p.name in ("node", "superexec.secret")]
    private += list(tmp_path.rglob("*.key"))
    assert len(private) == 6
    assert {stat.S_IMODE(p.stat().st_mode) for p in private} == {0o600}


def test_a_node_key_is_one_that_flower_reads(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a"])
    private = load_ssh_private_key((tmp_path / "a" / "node").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "a" / "node.pub").read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key().public_numbers() == public.public_numbers()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_nothing_is_replaced_silently(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a"])
    before = contents(tmp_path)
    with pytest.raises(DeployError, match=r"superlink is there; keep .* renew"):
        make_certificates(tmp_path, ["a"])
    with pytest.raises(DeployError, match="holds an authority"):
        Authority.create(tmp_path / "authority")
    assert contents(tmp_path) == before


def test_a_site_is_added_to_what_is_there(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a"])
    before = contents(tmp_path)
    make_certificates(tmp_path, ["a", "b"], existing="keep")
    after = contents(tmp_path)
    assert {name for name in after if name not in before} == {
        f"b/{name}" for name in MACHINE | {"node", "node.pub"}
    }
    assert all(after[name] == content for name, content in before.items())


def test_renewal_changes_certificates_and_no_registered_key(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a"])
    before = contents(tmp_path)
    make_certificates(tmp_path, ["a"], existing="renew")
    changed = {name for name, content in contents(tmp_path).items() if before[name] != content}
    assert changed == {f"{m}/{f}" for m in ("superlink", "a") for f in ("tls.crt", "tls.key")}


def test_renewal_keeps_all_names_and_adds_new_ones(tmp_path: Path) -> None:
    given = ["fl.example.org", "10.1.2.3"]
    make_certificates(tmp_path, ["a"], superlink_names=given, site_names={"a": ["node"]})
    before = {name: names(tmp_path / name / "tls.crt") for name in ("superlink", "a")}
    make_certificates(tmp_path, ["a", "b"], superlink_names=["new"], existing="renew")
    assert names(tmp_path / "superlink" / "tls.crt") == before["superlink"] | {"new"}
    assert names(tmp_path / "a" / "tls.crt") == before["a"]


def test_a_certificate_whose_names_cannot_be_read_is_not_renewed(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a"])
    (tmp_path / "superlink" / "tls.crt").write_text("junk")
    before = contents(tmp_path)
    with pytest.raises(DeployError, match=r"superlink/tls\.crt is no certificate"):
        make_certificates(tmp_path, ["a"], existing="renew")
    assert contents(tmp_path) == before


def test_a_name_that_a_kept_certificate_lacks_is_not_dropped_silently(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a"], superlink_names=["fl"])
    make_certificates(tmp_path, ["a", "b"], superlink_names=["fl"], existing="keep")
    with pytest.raises(DeployError, match=r"does not name new; renew it: --existing renew"):
        make_certificates(tmp_path, ["a", "c"], superlink_names=["new"], existing="keep")
    assert not (tmp_path / "c").exists()


def test_an_expired_authority_is_named(tmp_path: Path) -> None:
    Authority.create(tmp_path, days=1, begin=datetime.now(UTC) - timedelta(days=2))
    with pytest.raises(DeployError, match=r"expired on 20\d\d-\d\d-\d\d"):
        Authority.open(tmp_path)


@pytest.mark.parametrize("name", ["", "a/b", "..", "superlink", "authority", "a b", "x" * 64])
def test_a_name_that_cannot_be_a_folder_and_a_host_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DeployError, match=r"name a site|be called"):
        make_certificates(tmp_path / "new", [name])
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("days", [-1, 0, 3651, 99_999_999])
def test_a_validity_that_cannot_be_is_refused(tmp_path: Path, days: int) -> None:
    with pytest.raises(DeployError, match=rf"valid for 1 to 3,650 days, .* not {days}"):
        make_certificates(tmp_path / "new", ["a"], days=days)
    assert not (tmp_path / "new").exists()


def test_an_address_with_a_port_is_no_name(tmp_path: Path) -> None:
    with pytest.raises(DeployError, match=r"'fl:8000' is neither .* without port"):
        make_certificates(tmp_path / "new", ["a"], superlink_names=["fl:8000"])
    assert not (tmp_path / "new").exists()


def test_addresses_are_addresses(tmp_path: Path) -> None:
    content, _ = Authority.create(tmp_path).issue(["10.0.0.1", "10.0.0.1", "fe80::1"])
    found = x509.load_pem_x509_certificate(content).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert list(found.value) == [
        x509.IPAddress(ipaddress.ip_address("10.0.0.1")),
        x509.IPAddress(ipaddress.ip_address("fe80::1")),
    ]


@pytest.mark.parametrize("existing", ["keep", "renew"])
@pytest.mark.parametrize("sites", [["c"], ["a"], ["a", "c"]])
def test_no_second_authority_beside_machines_of_the_first(
    tmp_path: Path, existing: Existing, sites: list[str]
) -> None:
    """Where it is kept offline: certificates of another would fit nobody's ca.crt."""
    make_certificates(tmp_path / "keys", ["a", "b"])
    (tmp_path / "keys" / "authority").rename(tmp_path / "offline")
    before = contents(tmp_path)
    with pytest.raises(DeployError, match=r"keys/authority is not there.*bring .* back.*--out"):
        make_certificates(tmp_path / "keys", sites, existing=existing)
    # Nor where the SuperLink's folder is away as well.
    (tmp_path / "keys" / "superlink").rename(tmp_path / "superlink")
    with pytest.raises(DeployError, match=r"keys/authority is not there"):
        make_certificates(tmp_path / "keys", sites, existing=existing)
    (tmp_path / "superlink").rename(tmp_path / "keys" / "superlink")
    assert contents(tmp_path) == before
    assert not (tmp_path / "keys" / "authority").exists()
    (tmp_path / "offline").rename(tmp_path / "keys" / "authority")
    make_certificates(tmp_path / "keys", sites, existing=existing)


@pytest.mark.parametrize("existing", ["keep", "renew"])
@pytest.mark.parametrize("foreign", ["ca.crt", "tls.crt"])
def test_another_authority_is_not_taken_for_that_of_the_machines(
    tmp_path: Path, existing: Existing, foreign: str
) -> None:
    make_certificates(tmp_path / "keys", ["a", "b"])
    make_certificates(tmp_path / "other", ["a"])
    shutil.copy(tmp_path / "other" / "a" / foreign, tmp_path / "keys" / "a")
    before = contents(tmp_path)
    with pytest.raises(DeployError, match=rf"keys/a/{foreign} is of another authority than .*keys"):
        make_certificates(tmp_path / "keys", ["c"], existing=existing)
    assert contents(tmp_path) == before


def test_half_an_authority_is_none_to_replace(tmp_path: Path) -> None:
    make_certificates(tmp_path, ["a"])
    (tmp_path / "authority" / "ca.crt").unlink()
    before = contents(tmp_path)
    with pytest.raises(DeployError, match="authority holds no usable authority"):
        make_certificates(tmp_path, ["b"], existing="keep")
    assert contents(tmp_path) == before


@pytest.mark.parametrize("taken", ["authority", "superlink", "b"])
def test_a_file_in_place_of_a_machines_folder_is_named_before_anything_is_made(
    tmp_path: Path, taken: str
) -> None:
    (tmp_path / taken).write_text("mine")
    with pytest.raises(FedRecError, match=f"{taken} is a file"):
        make_certificates(tmp_path, ["a", "b"])
    assert [path.name for path in tmp_path.iterdir()] == [taken]


@pytest.mark.parametrize("lost", ["ca.crt", "tls.key", "superexec.secret", "node.pub", "tls.crt"])
def test_what_a_kept_machine_lacks_is_made(tmp_path: Path, lost: str) -> None:
    make_certificates(tmp_path, ["a"], site_names={"a": ["node"]})
    before = contents(tmp_path)
    (tmp_path / "a" / lost).unlink()
    make_certificates(tmp_path, ["a"], existing="keep")
    after = contents(tmp_path)
    assert after.keys() == before.keys()
    changed = {name for name in before if after[name] != before[name]}
    made = {"tls.crt", "tls.key"} if lost.startswith("tls") else {lost} & {"superexec.secret"}
    assert changed == {f"a/{name}" for name in made}
    certificate = read_certificate(tmp_path / "a" / "tls.crt")
    key = load_pem_private_key((tmp_path / "a" / "tls.key").read_bytes(), None)
    assert certificate.public_key() == key.public_key()
    assert lost == "tls.crt" or "node" in names_of(certificate)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tls.crt", b"", r"a/tls\.crt is no certificate.* remove it.*--existing keep"),
        ("tls.crt", b"junk", r"a/tls\.crt is no certificate.* remove it.*--existing keep"),
        ("ca.crt", b"", r"a/ca\.crt is no certificate.* remove it"),
        ("tls.key", b"junk", r"a/tls\.key is not the key of .*tls\.crt.*--existing renew"),
        ("node", None, r"a/node is not there.*node\.pub.*register"),
        ("node", b"", r"a/node is .*damaged.*node\.pub.*register"),
    ],
)
def test_what_is_damaged_is_named_with_what_to_do(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    make_certificates(tmp_path, ["a"])
    if content is None:
        (tmp_path / "a" / name).unlink()
    else:
        (tmp_path / "a" / name).write_bytes(content)
    before = contents(tmp_path)
    with pytest.raises(DeployError, match=said) as error:
        make_certificates(tmp_path, ["a", "b"], existing="keep")
    assert "http" not in str(error.value)
    assert contents(tmp_path) == before


def test_only_folders_that_something_is_put_into_must_be_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's volumes are such folders, in one that is read-only."""
    out = tmp_path / "keys"
    for name in ("authority", "superlink", "a"):
        (out / name).mkdir(parents=True)
    monkeypatch.setattr("os.access", lambda path, mode: path != out)
    make_certificates(out, ["a"])
    assert (out / "a" / "tls.crt").is_file()
    with pytest.raises(DeployError, match="keys cannot be written; let it belong to you"):
        make_certificates(out, ["b"], existing="keep")
    assert not (out / "b").exists()
