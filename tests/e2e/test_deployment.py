"""A whole deployment as plain processes: FilmTrust at three sites, TLS, registered nodes.

On Flower 1.39 sites and SuperLink speak gRPC, on later ones HTTP; everything else is the same.
"""

import os
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedrecgel import Result, prepare, simulate
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.certificates import Authority, make_certificates
from fedrecgel.deploy.check import check_superlink
from fedrecgel.deploy.flower import environment, flower_version, speaks_grpc, supernode_command
from fedrecgel.deploy.local import LocalDeployment
from fedrecgel.deploy.one_machine import OneMachine
from fedrecgel.deploy.probe import probe
from fedrecgel.deploy.processes import free_ports

pytestmark = [pytest.mark.flower, pytest.mark.slow, pytest.mark.realdata]
# Every user trains: for others a site fits a vector on the spot, which a simulation does not.
SETTINGS = {"rounds": 5, "dtype": "float64", "evaluate_every": 5, "seed": 3, "fraction": 1.0}
GRPC = speaks_grpc(flower_version())


@dataclass
class Trained:
    """A deployment that has trained and still runs."""

    machine: OneMachine
    running: LocalDeployment
    result: Result
    lines: list[str]
    commands: set[str] = field(default_factory=set)


def family(pids: list[int]) -> list[int]:
    """These processes and all that they started."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(stat[1]), []).append(int(entry.name))
    found = list(pids)
    for pid in found:
        found += parents.get(pid, [])
    return found


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def listening(pids: list[int]) -> set[tuple[str, int]]:
    """Addresses and ports on which these processes accept connections."""
    sockets = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            try:
                sockets.add(os.readlink(link))
            except OSError:
                continue
    found = set()
    for table, family_ in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                address, port = fields[1].split(":")
                words = np.frombuffer(bytes.fromhex(address), dtype=">u4").byteswap().tobytes()
                host = socket.inet_ntop(family_, words).removeprefix("::ffff:")
                found.add((host, int(port, 16)))
    return found


@pytest.fixture(scope="module")
def data(shared_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return prepare(shared_data / "filmtrust", tmp_path_factory.mktemp("deployed") / "data")


@pytest.fixture(scope="module")
def trained(data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    machine = OneMachine.prepare(data, tmp_path_factory.mktemp("deployment"), sites=3)
    lines: list[str] = []
    commands: set[str] = set()
    with machine.running(lines.append) as running:
        pids = [process.popen.pid for process in running.processes.started]

        def say(line: str) -> None:
            lines.append(line)
            commands.update(command_of(pid) for pid in family(pids))

        result = machine.train(running, machine.run_config(SETTINGS), say)
        yield Trained(machine, running, result, lines, commands)


def test_sites_are_of_different_size_and_one_has_a_single_user(trained: Trained) -> None:
    assert [site.users for site in trained.machine.sites] == [817, 409, 1]
    assert any("1,227 users on 3 nodes" in line for line in trained.lines)


def test_metrics_are_those_of_a_simulation(trained: Trained, data: Dataset, tmp_path: Path) -> None:
    ours = simulate(data, tmp_path / "ours", log="none", **SETTINGS)
    for name in ("sampled.hr@10", "sampled.ndcg@10", "full.hr@10", "full.ndcg@10"):
        assert trained.result.metric(name) == pytest.approx(ours.metric(name), abs=1e-6)
    # And so are the recommendations, each computed where the user's data and private state are.
    for site in trained.machine.sites:
        user, items = trained.machine.recommend(site, 10)
        assert items == [found.item for found in ours.recommend(user, 10)]


def test_every_process_was_told_whom_to_trust(trained: Trained) -> None:
    # U031: a secure parent must not start an insecure child.
    # Client apps are forked from what was started as warm.py, and have its command.
    apps = {name for name in ("warm.py", "flwr-serverapp") if name in str(trained.commands)}
    assert apps == {"warm.py", "flwr-serverapp"}
    assert [command for command in trained.commands if "--insecure" in command] == []
    flower = [c for c in trained.commands if re.search(r"flower-|flwr-|warm\.py", c)]
    assert [c for c in flower if "ca.crt" not in c] == []


def test_every_port_is_on_loopback_and_speaks_tls_only(trained: Trained) -> None:
    pids = [process.popen.pid for process in trained.running.processes.started]
    ports = listening(family(pids))
    assert len(ports) == (5 if GRPC else 4)  # the SuperLink's one or two, one of each SuperNode
    ca = trained.running.certificates / "superlink" / "ca.crt"
    for host, port in ports:
        assert host in ("127.0.0.1", "::1")
        assert probe(f"{host}:{port}", ca).tls in ("TLSv1.2", "TLSv1.3")
        with socket.create_connection((host, port), 5) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            plain.settimeout(5)
            try:
                answer = plain.recv(100)
            except OSError:
                answer = b""
            assert not answer.startswith(b"HTTP/"), (port, answer)


def call_grpc(address: tuple[str, int], context: ssl.SSLContext) -> bytes:
    """POST with content-type application/grpc by hand; the bytes of the answer's frames."""

    def frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
        head = len(content).to_bytes(3, "big") + bytes([kind, flags])
        return head + stream.to_bytes(4, "big") + content

    def header(name: bytes, value: bytes) -> bytes:  # literal, never indexed, not compressed
        return b"\x10" + bytes([len(name)]) + name + bytes([len(value)]) + value

    headers = header(b":method", b"POST") + header(b":scheme", b"https")
    headers += header(b":path", b"/flwr.proto.Fleet/Nothing") + header(b":authority", b"x")
    headers += header(b"content-type", b"application/grpc") + header(b"te", b"trailers")
    with (
        socket.create_connection(address, 5) as plain,
        context.wrap_socket(plain, server_hostname=address[0]) as tls,
    ):
        tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0, b""))
        tls.sendall(frame(1, 4, 1, headers) + frame(0, 1, 1, b"\0" * 5))
        answer = b""
        while b"grpc-status" not in answer:
            more = tls.recv(4096)
            if not more:
                break
            answer += more
        return answer


def test_sites_reach_the_superlink_by_grpc_on_1_39(trained: Trained) -> None:
    link = trained.running.link
    ca = trained.running.certificates / "superlink" / "ca.crt"
    fleet = link.fleet(trained.running.version)
    for site in trained.machine.sites:
        command = next(c for c in trained.commands if "supernode" in c and site.name in c)
        assert f"--superlink {fleet} " in command
        assert ("--grpc-rere" in command) == GRPC
    if not GRPC:
        assert probe(fleet, ca).protocol != "h2"
        assert "HTTP over TLS" in check_superlink(fleet, ca)
        return
    assert probe(fleet, ca).protocol == "h2"
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    answer = call_grpc((link.host, link.fleet_port), context)
    assert b"application/grpc" in answer
    assert b"grpc-status" in answer
    assert "gRPC over TLS" in check_superlink(fleet, ca)


def test_a_site_with_the_wrong_authority_is_told_so_at_once(
    trained: Trained, tmp_path: Path
) -> None:
    Authority.create(tmp_path)
    fleet = trained.running.link.fleet(trained.running.version)
    with pytest.raises(DeployError, match="signed by another"):
        check_superlink(fleet, tmp_path / "ca.crt")


def test_a_partner_joins_late_and_a_site_leaves_and_returns(
    trained: Trained, tmp_path: Path
) -> None:
    # docs/how-to/join-flower.md, and U008, U013, U028: a second run over the same processes. The
    # late site has keys of its own making, another authority, and a SuperNode that starts its
    # executor itself.
    machine, running = trained.machine, trained.running
    late, leaving = machine.sites[0], machine.sites[1]
    running.processes.stop(f"{late.name}-exec", late.name)
    make_certificates(tmp_path, [late.name])
    keys = tmp_path / late.name
    assert running.operator.register(keys / "node.pub", f"{late.name}-again")
    command = supernode_command(
        running.link,
        keys,
        machine.local_site(late).node_config,
        running.version,
        bind="127.0.0.1",
        port=free_ports(1)[0],
        authority=running.certificates / "superlink" / "ca.crt",
        isolation="subprocess",
    )
    home = environment(tmp_path / "flower")
    said: list[str] = []
    commands: set[str] = set()

    def say(line: str) -> None:
        said.append(line)
        if line.startswith("round 1/"):
            running.processes.start("partner", command, home, tmp_path, rank=2)
            running.processes.stop(f"{leaving.name}-exec", leaving.name)
        if f"{late.name} joined" in line:
            running.start_supernode(machine.local_site(leaving))
            running.start_client_executor(leaving.name)
        commands.update(command_of(process) for process in family([os.getpid()]))

    settings = {**SETTINGS, "rounds": 7, "evaluate_every": 7}
    config: dict[str, Any] = machine.run_config(settings, overwrite=True)
    result = machine.train(running, config | {"min-nodes": 2}, say)
    assert len([line for line in said if line.startswith("round ")]) == 7
    assert f"{late.name} joined with 817 users" in said
    assert any(line.startswith(f"{leaving.name} is away") for line in said)
    assert any(line.startswith(f"{leaving.name} is back") for line in said)
    assert result.values["users"]["all"] == 1227
    assert [command for command in commands if "--insecure" in command] == []
