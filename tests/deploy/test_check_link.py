"""A SuperNode about to start says in one line that its SuperLink has another kind of Flower."""

from pathlib import Path

import pytest

from fedrecgel.common.errors import DeployError
from fedrecgel.deploy import check
from fedrecgel.deploy.check import check_link
from fedrecgel.deploy.flower import SuperLink
from fedrecgel.deploy.probe import Answer

CA = Path("ca.crt")


def network(
    monkeypatch: pytest.MonkeyPatch, own: str, answers: dict[str, str], api_version: str = ""
) -> None:
    """Let this Flower be ``own`` and addresses answer with these protocols."""

    def probe(address: str, ca: Path) -> Answer:
        if address not in answers:
            raise DeployError(f"{address} does not answer")
        return Answer("TLSv1.3", answers[address])

    monkeypatch.setattr(check, "flower_version", lambda: own)
    monkeypatch.setattr(check, "probe", probe)
    monkeypatch.setattr(check, "offers_fleet", lambda address, ca: True)
    monkeypatch.setattr(check, "flower_of", lambda address, ca: api_version)


def test_the_same_kind_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    network(monkeypatch, "1.39.0", {"superlink:9092": "h2"})
    assert check_link(SuperLink(), CA).startswith("superlink:9092: gRPC over TLSv1.3")
    network(monkeypatch, "1.42.0", {"superlink:8000": ""}, "1.42.0")
    assert check_link(SuperLink(), CA).startswith("superlink:8000: HTTP over TLSv1.3")


def test_an_older_node_is_told_that_versions_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    network(monkeypatch, "1.39.0", {"superlink:8000": ""}, "1.42.0")
    with pytest.raises(
        DeployError, match=r"superlink:8000 runs Flower 1\.42\.0, here is .*1\.39.*kind, 1\.39 \(g"
    ):
        check_link(SuperLink(), CA)


def test_a_newer_node_is_told_that_versions_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    network(monkeypatch, "1.42.0", {"superlink:9092": "h2"})
    with pytest.raises(DeployError, match=r"superlink:9092 runs Flower 1\.39, here is .*1\.42"):
        check_link(SuperLink(), CA)


def test_where_nothing_answers_that_is_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    network(monkeypatch, "1.39.0", {})
    with pytest.raises(DeployError, match=r"^superlink:9092 does not answer$"):
        check_link(SuperLink(), CA)
