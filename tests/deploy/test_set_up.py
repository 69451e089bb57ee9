"""The keys of a compose file's containers: each gets its own, and a second time changes nothing."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from fedrecgel.common.data.catalogue import Catalogue
from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.certificates import make_certificates, names_of, read_certificate
from fedrecgel.deploy.set_up import make_data, make_keys

SITES = ["site-1", "site-2"]


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    # As volumes are mounted: the folders are there and empty.
    for name in ("superlink", *SITES, *(f"{site}-app" for site in SITES), "site-1-serve"):
        (tmp_path / "keys" / name).mkdir(parents=True)
    make_keys(tmp_path / "keys", SITES, ["superlink-api"])
    return tmp_path / "keys"


def test_executors_get_the_secret_of_their_node_and_no_key(keys: Path) -> None:
    for name in ("server-app", "site-1-app", "site-2-app"):
        assert {path.name for path in (keys / name).iterdir()} == {"ca.crt", "superexec.secret"}
    secrets = {(keys / f"{site}-app" / "superexec.secret").read_bytes() for site in SITES}
    assert secrets == {(keys / site / "superexec.secret").read_bytes() for site in SITES}
    assert len(secrets) == 2
    assert (keys / "site-1-app" / "superexec.secret").stat().st_mode & 0o777 == 0o600


def test_a_site_serves_with_a_certificate_of_its_own(keys: Path) -> None:
    assert {path.name for path in (keys / "site-1-serve").iterdir()} == {
        *("ca.crt", "tls.crt", "tls.key")
    }
    certificate = x509.load_pem_x509_certificate((keys / "site-1-serve" / "tls.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "site-1-serve" in names.get_values_for_type(x509.DNSName)
    assert (keys / "site-1-serve" / "tls.key").stat().st_mode & 0o777 == 0o600


def test_who_registers_nodes_gets_public_keys_alone(keys: Path) -> None:
    public = {path.name for path in (keys / "public").iterdir()}
    assert public == {"ca.crt", "site-1.pub", "site-2.pub"}
    assert (keys / "public" / "site-1.pub").read_bytes() == (
        keys / "site-1" / "node.pub"
    ).read_bytes()


def test_a_name_that_is_added_gets_into_the_certificate(keys: Path) -> None:
    make_keys(keys, SITES, ["superlink-api", "fl.example.org"])
    held = read_certificate(keys / "superlink" / "tls.crt")
    assert {"superlink-api", "fl.example.org"} <= set(names_of(held))


def test_a_second_time_changes_nothing(keys: Path) -> None:
    before = contents(keys)
    make_keys(keys, SITES, ["superlink-api"])
    assert contents(keys) == before


def test_a_further_site_leaves_the_others_as_they_are(keys: Path) -> None:
    before = contents(keys)
    make_keys(keys, [*SITES, "site-3"], ["superlink-api"])
    after = contents(keys)
    assert {name: after[name] for name in before} == before
    assert "site-3/node" in after


@pytest.mark.parametrize(
    ("sites", "names", "said"),
    [
        (["a", "../b"], [], "cannot name a site"),
        (["a", "a"], [], "two sites have the same name"),
        (["a", "authority"], [], "has another purpose"),
        (["a", "public"], [], "two containers would have the folder .*/public"),
        (["a", "a-app"], [], "two containers would have the folder .*/a-app"),
        (["a"], ["fl:8000"], "give names without port"),
    ],
)
def test_names_are_looked_at_before_a_folder_is_made(
    tmp_path: Path, sites: list[str], names: list[str], said: str
) -> None:
    with pytest.raises(DeployError, match=said):
        make_keys(tmp_path / "keys", sites, names)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("lost", ["tls.crt", "tls.key", "ca.crt"])
def test_what_a_server_of_recommendations_lacks_is_made(keys: Path, lost: str) -> None:
    before = contents(keys).keys()
    (keys / "site-1-serve" / lost).unlink()
    make_keys(keys, SITES, ["superlink-api"])
    assert contents(keys).keys() == before


def test_certificates_about_to_expire_are_renewed_and_nothing_else(keys: Path) -> None:
    shutil.rmtree(keys)
    make_certificates(keys, SITES, days=20)
    before = contents(keys)
    make_keys(keys, SITES, ["superlink-api"])
    after = contents(keys)
    changed = {name for name in before if after[name] != before[name]}
    assert changed == {f"{m}/tls.{e}" for m in ("superlink", *SITES) for e in ("crt", "key")}
    assert read_certificate(keys / "superlink" / "tls.crt").not_valid_after_utc > datetime.now(
        UTC
    ) + timedelta(days=300)


def test_made_data_are_made_once(tmp_path: Path) -> None:
    for site in SITES:
        (tmp_path / site).mkdir()
    assert make_data(tmp_path, SITES)
    sizes = [len((tmp_path / s / "interactions.csv").read_text().splitlines()) for s in SITES]
    assert sizes[0] > sizes[1] > 5
    assert len(Catalogue.load(tmp_path / "catalogue" / "catalogue.json").item_ids) > 10
    before = contents(tmp_path)
    assert not make_data(tmp_path, SITES)
    assert contents(tmp_path) == before
