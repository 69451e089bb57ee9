"""Command lines of Flower's processes: that the installed Flower knows them, and what they hold."""

import subprocess
from pathlib import Path

import pytest
from flwr.common.config import parse_config_args

from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.flower import (
    SuperLink,
    config_text,
    environment,
    flower_version,
    superexec_command,
    superlink_command,
    supernode_command,
)

HERE = Path("/keys")
LINK = SuperLink("fl.example.org")


def commands(version: str) -> list[list[str]]:
    return [
        superlink_command(LINK, HERE, Path("flower.db"), version),
        supernode_command(LINK, HERE, {"site": "a"}, version),
        superexec_command(LINK.api, HERE),
    ]


@pytest.mark.flower
def test_the_installed_flower_knows_every_option(tmp_path: Path) -> None:
    for command in commands(flower_version()):
        done = subprocess.run(
            [command[0], "--help"],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            timeout=60,
        )
        options = [word for word in command if word.startswith("--")]
        assert [option for option in options if option not in done.stdout.split()] == []


@pytest.mark.parametrize("version", ["1.39.0", "1.42.0"])
def test_nothing_is_started_without_tls_or_with_shared_homes(version: str) -> None:
    for command in commands(version):
        assert "--insecure" not in command
        assert any(word.endswith("ca.crt") for word in command)
        assert "--superexec-auth-secret-file" in command
    link, node, _ = commands(version)
    assert "--enable-supernode-auth" in link
    assert "--auth-supernode-private-key" in node
    assert all("process" in command for command in (link, node))


@pytest.mark.parametrize("version", ["1.39.0", "1.42.0"])
def test_the_superlink_keeps_its_state_in_a_file(version: str) -> None:
    """U034: in memory (Flower's default) a restart loses runs and registered nodes."""
    link = commands(version)[0]
    assert link[link.index("--database") + 1] == "flower.db"
    assert ":memory:" not in link


def test_sites_dial_the_grpc_port_up_to_1_39_and_the_api_after() -> None:
    old, new = (supernode_command(LINK, HERE, {}, version) for version in ("1.39.2", "1.40.0"))
    assert old[old.index("--superlink") + 1] == "fl.example.org:9092"
    assert new[new.index("--superlink") + 1] == "fl.example.org:8000"
    assert ("--grpc-rere" in old, "--grpc-rere" in new) == (True, False)
    link = superlink_command(LINK, HERE, Path("x"), "1.42.0")
    assert not [word for word in link if word.startswith("--fleet")]


def test_flower_reads_a_configuration_back() -> None:
    values = {"site": "clinic a", "path": '/d "x"\\y', "n": 3, "share": 0.5, "on": True}
    assert parse_config_args([config_text(values)]) == values


def test_a_quote_that_flower_cannot_read_is_refused() -> None:
    with pytest.raises(DeployError, match="'site' cannot be given to Flower"):
        config_text({"site": "o'hara"})


def test_no_process_calls_home_or_installs_anything(tmp_path: Path) -> None:
    variables = environment(tmp_path, {"PATH": "/bin"})
    assert variables["FLWR_TELEMETRY_ENABLED"] == "0"
    assert variables["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert variables["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"
    assert variables["FLWR_HOME"] == str(tmp_path)
    assert variables["FLWR_SUPEREXEC_TASK_POLL_INTERVAL"] == "0.2"
    assert variables["PATH"].endswith("/bin")


def test_what_the_user_has_set_holds(tmp_path: Path) -> None:
    own = {
        "FLWR_TELEMETRY_ENABLED": "1",
        "FLWR_DISABLE_UPDATE_CHECK": "0",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
    }
    variables = environment(tmp_path, own)
    assert {name: variables[name] for name in own} == own


def test_an_unknown_flower_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.50.0")
    with pytest.raises(DeployError, match=r"Flower 1\.50\.0 is installed; .* pip install"):
        flower_version()
