"""Whether a site's Flower and a SuperLink's fit together (U036)."""

from pathlib import Path

import pytest

from fedrecgel.common.errors import DeployError
from fedrecgel.deploy import check as module
from fedrecgel.deploy.check import check_superlink
from fedrecgel.deploy.probe import Answer

CA = Path("ca.crt")


def found(
    monkeypatch: pytest.MonkeyPatch, own: str, protocol: str, theirs: str, *, fleet: bool = True
) -> str:
    monkeypatch.setattr(module, "flower_version", lambda: own)
    monkeypatch.setattr(module, "probe", lambda address, ca: Answer("TLSv1.3", protocol))
    monkeypatch.setattr(module, "flower_of", lambda address, ca: theirs)
    monkeypatch.setattr(module, "offers_fleet", lambda address, ca: fleet)
    return check_superlink("fl:9092", CA)


def test_the_same_kind_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    line = found(monkeypatch, "1.39.0", "h2", "")
    assert line == "fl:9092: gRPC over TLSv1.3, Flower 1.39, certificate trusted; here 1.39.0"
    line = found(monkeypatch, "1.42.0", "http/1.1", "1.41.0")
    assert line == "fl:9092: HTTP over TLSv1.3, Flower 1.41.0, certificate trusted; here 1.42.0"


@pytest.mark.parametrize(
    ("own", "protocol", "theirs", "said"),
    [
        (
            "1.39.0",
            "http/1.1",
            "1.42.0",
            r"versions differ: .* 1\.42\.0, .* install flwr==1\.42\.0",
        ),
        (
            "1.42.0",
            "http/1.1",
            "1.39.0",
            r"versions differ: .* 1\.39\.0, .* install flwr==1\.39\.0",
        ),
        ("1.42.0", "h2", "", r"versions differ: fl:9092 speaks gRPC, .* install flwr==1\.39\.0"),
        ("1.39.0", "http/1.1", "1.39.0", "is the API of a SuperLink .* port 9092"),
    ],
)
def test_a_node_that_would_try_for_ever_is_told_why(
    monkeypatch: pytest.MonkeyPatch, own: str, protocol: str, theirs: str, said: str
) -> None:
    with pytest.raises(DeployError, match=said):
        found(monkeypatch, own, protocol, theirs)


def test_something_that_is_no_superlink(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeployError, match="fl:9092 answers over TLS but is no SuperLink"):
        found(monkeypatch, "1.42.0", "http/1.1", "")


@pytest.mark.parametrize("own", ["1.39.0", "1.42.0"])
def test_another_server_of_grpc_is_no_superlink(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    """As `fedrecgel serve`, with a certificate of the same authority."""
    with pytest.raises(DeployError, match=r"fl:9092 .* is no SuperLink; is the port right\?"):
        found(monkeypatch, own, "h2", "", fleet=False)
