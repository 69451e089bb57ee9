"""The compose file: who may reach, read and write what; and that its commands exist."""

import re
import runpy
import tomllib
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedrecgel.cli import _parser
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.compose import MAX_SITES, Source, compose_text, site_names, write_compose

ROOT = Path(__file__).resolve().parents[2]
SITES = ["site-1", "site-2", "site-3"]
ONE_SHOTS = {"set-up", "register", "run", "recommend"}


@pytest.fixture(scope="module", params=["", "./sites"], ids=["made data", "own data"])
def compose(request: pytest.FixtureRequest) -> Any:
    return yaml.safe_load(compose_text(SITES, Source(request.param)))


def mounts(service: dict[str, Any]) -> dict[str, tuple[str, bool]]:
    """Source -> (target, whether it is read-only)."""
    found = (volume.split(":") for volume in service.get("volumes", []))
    return {parts[0]: (parts[1], parts[2:] == ["ro"]) for parts in found}


def networks(service: dict[str, Any]) -> set[str]:
    return set(service.get("networks", {}))


def test_the_file_of_the_project_is_what_the_command_writes() -> None:
    text = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert text == compose_text(SITES, context="."), "fedrecgel deploy compose --overwrite"


def test_every_container_is_held_short(compose: Any) -> None:
    for service in compose["services"].values():
        assert service["user"].endswith(":-10001:10001}")
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert {"mem_limit", "cpus", "pids_limit", "shm_size", "tmpfs"} <= service.keys()
        assert "privileged" not in service


def test_one_variable_says_which_flower_all_containers_have(compose: Any) -> None:
    images = {service["image"] for service in compose["services"].values()}
    assert images == {"fedrecgel:flwr-${FLWR:-1.39}"}
    built = [name for name, service in compose["services"].items() if "build" in service]
    assert built == ["set-up"]
    assert compose["services"]["set-up"]["build"]["args"] == {"FLWR": "${FLWR:-1.39}.*"}


def test_nothing_goes_without_tls_and_nothing_is_published(compose: Any) -> None:
    assert "insecure" not in str(compose)
    assert not any("ports" in service for service in compose["services"].values())
    assert all(network == {"internal": True} for network in compose["networks"].values())


def test_sites_share_no_network_and_an_app_reaches_its_node_alone(compose: Any) -> None:
    services = compose["services"]
    for one, other in combinations(SITES, 2):
        assert not networks(services[one]) & networks(services[other])
    for site in SITES:
        assert networks(services[f"{site}-app"]) == {site}
        assert networks(services[site]) == {site, f"{site}-link"}
        assert networks(services["superlink"]) & networks(services[site]) == {f"{site}-link"}
        on_it = {name for name, service in services.items() if site in networks(service)}
        assert all(name.startswith(site) for name in on_it)
    assert networks(services["server-app"]) == {"server"}


def test_keys_go_to_those_whose_they_are_read_only(compose: Any) -> None:
    for name, service in compose["services"].items():
        for source, (target, read_only) in mounts(service).items():
            if not source.endswith("-keys"):
                continue
            if name == "set-up":
                assert target == f"/volumes/keys/{source.removesuffix('-keys')}"
            else:
                assert read_only
                assert target == "/keys"
                owners = {"server-app": {"server-app"}, "register": {"public"}, "run": {"public"}}
                assert source.removesuffix("-keys") in owners.get(name, {name})


def test_interactions_and_private_state_are_seen_by_their_site_alone(compose: Any) -> None:
    for name, service in compose["services"].items():
        for source, (_, read_only) in mounts(service).items():
            site = next((site for site in SITES if site in source), None)
            if site is None or source.endswith("-keys") or name == "set-up":
                continue
            assert name.startswith(f"{site}-")
            assert read_only or source == f"{site}-state"


def test_what_must_last_lies_in_a_volume(compose: Any) -> None:
    """U034: the SuperLink's database among it."""
    services = compose["services"]
    assert "--database" in services["superlink"]["command"]
    assert mounts(services["superlink"])["superlink-state"] == ("/state", False)
    assert mounts(services["server-app"])["runs"] == ("/runs", False)
    named = {source for s in services.values() for source in mounts(s) if "/" not in source}
    assert named == set(compose["volumes"])


def test_services_start_in_order_and_come_back(compose: Any) -> None:
    services = compose["services"]
    assert services["superlink"]["depends_on"] == {
        "set-up": {"condition": "service_completed_successfully"}
    }
    assert services["register"]["depends_on"] == {"superlink": {"condition": "service_healthy"}}
    for site in SITES:
        assert services[site]["depends_on"] == {
            "register": {"condition": "service_completed_successfully"}
        }
        assert services[f"{site}-app"]["depends_on"] == {site: {"condition": "service_healthy"}}
    for name, service in services.items():
        assert service["restart"] == ("no" if name in ONE_SHOTS else "unless-stopped"), name


def test_a_container_is_well_when_it_has_its_connection(compose: Any, tmp_path: Path) -> None:
    """The line of /proc/net/tcp of a connection to this port, and no other."""
    row = "   1: 0A00000A:{} 0B00000A:{} {} 00000000:00000000 00:00000000 00000000 10001 0 77\n"
    expected = {"server-app": 8000, "site-1": 9092, "site-1-app": 9094}
    for service, port in expected.items():
        test = compose["services"][service]["healthcheck"]["test"]
        pattern = re.search(r":\S+ 01 ", " ".join(test)).group()  # type: ignore[union-attr]
        listens, wanted, other = (f"{number:04X}" for number in (43210, port, port + 1))
        assert re.search(pattern, row.format(listens, wanted, "01"))
        for line in ((listens, other, "01"), (listens, wanted, "02"), (wanted, listens, "01")):
            assert not re.search(pattern, row.format(*line))


def test_the_command_line_knows_every_command(compose: Any) -> None:
    parser = _parser()
    for service in compose["services"].values():
        command = [*service.get("entrypoint", ["fedrecgel"]), *service["command"]]
        assert command[0] == "fedrecgel"
        parser.parse_args(command[1:])


def test_own_data_come_from_files_beside_the_compose_file() -> None:
    services = yaml.safe_load(compose_text(SITES, Source("./sites")))["services"]
    assert mounts(services["site-2-app"])["./sites/site-2"] == ("/data", True)
    assert "--synthetic" not in services["set-up"]["command"]


def test_names_of_sites_sort_as_they_count() -> None:
    assert site_names(2) == ["site-1", "site-2"]
    names = site_names(MAX_SITES)
    assert names[0] == "site-01"
    assert names == sorted(names)
    for count in (0, MAX_SITES + 1):
        with pytest.raises(DeployError, match=f"1 to {MAX_SITES} sites, not {count}"):
            site_names(count)


def test_the_image_has_a_folder_for_every_site_and_the_pinned_torch() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
    assert f"$(seq -w {MAX_SITES})" in text
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert f"ARG TORCH={pins.partition('torch==')[2].split()[0]}\n" in text
    assert "USER 10001:10001\n" in text


def test_the_image_installs_what_the_package_needs_and_nothing_else() -> None:
    script = runpy.run_path(str(ROOT / "deploy" / "requirements.py"))
    pyproject, pins = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "constraints.txt")
    )
    lines = script["requirements"](pyproject, pins, "1.39.*")
    project = tomllib.loads(pyproject)["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    assert len(lines) == len(wanted) - 1  # without torch
    assert "flwr==1.39.*" in lines
    assert f"numpy=={pins.partition('numpy==')[2].split()[0]}" in lines
    # Flower decides which cryptography it takes.
    assert "cryptography" in lines


def test_the_command_writes_the_file_and_the_sites_files(
    small_data: Dataset, tmp_path: Path
) -> None:
    said = write_compose(tmp_path, 3, small_data.path)
    assert said[2].startswith("site-3: 1 user in ")
    services = yaml.safe_load((tmp_path / "docker-compose.yml").read_text())["services"]
    for name, service in services.items():
        for source in mounts(service):
            assert not source.startswith(".") or (tmp_path / source).exists(), name
    context = services["set-up"]["build"]["context"]
    assert (tmp_path / context).resolve() == ROOT
    with pytest.raises(DeployError, match="replace it with --overwrite"):
        write_compose(tmp_path, 3)
    (tmp_path / "sites" / "site-1" / "interactions.csv").write_text("user,item\nu,i\n")
    text = (tmp_path / "docker-compose.yml").read_text()
    with pytest.raises(DeployError, match="is not what was written there: a site's own file"):
        write_compose(tmp_path, 2, small_data.path, overwrite=True)
    assert (tmp_path / "docker-compose.yml").read_text() == text
    write_compose(tmp_path, 2, overwrite=True)
    assert "site-3" not in (tmp_path / "docker-compose.yml").read_text()
