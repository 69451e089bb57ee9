"""What happens to a deployment when something breaks: one line, nothing private lost.

Not part of the test suite (minutes of waiting for Flower's own timeouts): ``make test-faults``.
docs/explanation/faults.md has the outcome as a table.
"""

import os
import re
import resource
import shutil
import signal
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from fedrecgel import simulate
from fedrecgel.client.lock import own
from fedrecgel.common.errors import DeployError
from fedrecgel.deploy.certificates import Authority, make_certificates
from fedrecgel.deploy.check import check_superlink
from fedrecgel.deploy.flower import SuperLink, environment, supernode_command
from fedrecgel.deploy.local import LocalDeployment, LocalSite
from fedrecgel.deploy.processes import Processes, free_ports

from .conftest import Rig

pytestmark = pytest.mark.faults


def rounds(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("round ")]


def failures(line: str) -> int:
    found = re.search(r"failures (\d+)", line)
    return int(found.group(1)) if found else 0


States = dict[tuple[object, int], bytes]


def of_round(states: States, round: int) -> States:
    return {key: state for key, state in states.items() if key[1] == round}


def up_to(states: States, round: int) -> States:
    return {key: state for key, state in states.items() if key[1] <= round}


def test_a_catalogue_that_is_damaged(rig: Rig, tmp_path: Path) -> None:
    text = (rig.machine.folder / "sites" / "catalogue.json").read_text()
    damaged = tmp_path / "catalogue.json"
    damaged.write_text(text.replace('"seed": 0', '"seed": 1', 1))
    with pytest.raises(DeployError, match="is damaged: its hash differs"):
        rig.run(rounds=1, catalogue=str(damaged))


def test_an_unregistered_key(rig: Rig) -> None:
    make_certificates(rig.running.certificates, ["site-9"], existing="keep")  # and not registered
    node = rig.running.start_supernode(LocalSite("site-9", {"site": "site-9"}))
    node.popen.wait(90)
    rig.running.processes.started.remove(node)
    assert "is not registered" in str(node.ended())


def test_a_site_that_trusts_another_authority(rig: Rig, tmp_path: Path) -> None:
    running = rig.running
    fleet, keys = running.link.fleet(running.version), tmp_path / "keys"
    Authority.create(tmp_path / "authority")
    shutil.copytree(running.certificates / rig.site(2), keys)
    shutil.copy(tmp_path / "authority" / "ca.crt", keys)
    with pytest.raises(DeployError, match="signed by another"):
        check_superlink(fleet, keys / "ca.crt")
    # The SuperNode itself tries again and again, and stays out.
    config = {"site": "x"}
    command = supernode_command(running.link, keys, config, running.version, bind="127.0.0.1")
    with Processes(tmp_path / "logs") as processes:
        stranger = processes.start("stranger", command, environment(tmp_path), tmp_path)
        time.sleep(20)
    assert "SuperNode ID" not in stranger.log.read_text()


@pytest.mark.parametrize(
    ("names", "age", "said"),
    [
        (["127.0.0.1"], 3, r"superlink: the certificate of 127\.0\.0\.1:\d+ expired on 20"),
        (["superlink"], 0, r"is for superlink, not for 127\.0\.0\.1"),
    ],
    ids=["expired", "other name"],
)
def test_a_superlink_whose_certificate_will_not_do(
    rig: Rig, tmp_path: Path, names: list[str], age: int, said: str
) -> None:
    keys = tmp_path / "certificates" / "superlink"
    shutil.copytree(rig.running.certificates / "superlink", keys)
    authority = Authority.open(rig.running.certificates / "authority")
    begin = datetime.now(UTC) - timedelta(days=age, minutes=1)
    certificate, key = authority.issue(names, days=1, begin=begin)
    (keys / "tls.crt").write_bytes(certificate)
    (keys / "tls.key").write_bytes(key)
    link = SuperLink("127.0.0.1", *free_ports(2))
    with Processes(tmp_path / "logs") as processes:
        other = LocalDeployment(
            tmp_path, rig.running.version, link, rig.running.operator, processes
        )
        began = time.monotonic()
        with pytest.raises(DeployError, match=said):
            other.start_superlink()
        assert time.monotonic() - began < 60


def test_one_misfortune_after_another(rig: Rig) -> None:
    """Client app killed before and after it saved, updates that must not count, disk full, ...

    On a full disk the store cannot grow (round 7), or Flower cannot even unpack the app (round 8).
    In round 10 another process, this one, has the store.
    """
    rig.fault(2, r2="die-before", r3="die-after", r4="nan", r5="shape", r6="huge", r7="full")
    executor = rig.pids(f"{rig.site(2)}-exec")
    whole = resource.getrlimit(resource.RLIMIT_FSIZE)
    store = rig.machine.state(rig.site(2)) / "private.sqlite"
    seen, owned = {}, []

    def limit(sizes: tuple[int, int]) -> None:
        for pid in executor:
            resource.prlimit(pid, resource.RLIMIT_FSIZE, sizes)

    def on_line(line: str) -> None:
        if not line.startswith("round "):
            return
        round = int(line.split()[1].partition("/")[0])
        seen[round] = rig.states(2)
        if round == 7:
            limit((1 << 14, whole[1]))
        if round == 8:
            # The app of round 9 may have started already, with the limit.
            owned.append(own(store, 20))
            limit(whole)
        if round == 10:
            owned.clear()

    lines, result = rig.run(on_line, rounds=11)
    # The line of an evaluated round, here the last, counts since the evaluated one before.
    assert [failures(line) for line in rounds(lines)] == [0, *[1] * 9, 9]
    assert ["users 60" in line for line in rounds(lines)] == [True, *[False] * 9, True]
    # What was accepted in round 1 stands, to the bit, whatever came after it.
    assert len(up_to(seen[1], 1)) == 20
    for round in range(2, 11):
        assert up_to(seen[round], 1) == up_to(seen[1], 1), round
    said = [line for line in lines if line.startswith(rig.site(2))]
    assert len(said) == 7, "a line for each kind of misfortune"
    assert said[0].startswith(f"{rig.site(2)}: client app crashed")
    assert all(": refused: " in line for line in said[1:4])
    assert re.search(r"private\.sqlite .* nothing of it is lost: check the disk", said[4])
    assert "File too large" in said[5]
    assert f"is in use by process {os.getpid()} on" in said[6]
    assert result.values["users"]["trained"] == 60


def test_server_app_is_killed_and_resumed(rig: Rig, tmp_path: Path) -> None:
    seen = []

    def on_line(line: str) -> None:
        if line.startswith("round 2/3"):
            seen.append([rig.states(site) for site in (1, 2)])
            for pid in rig.pids("superlink-exec", "flwr-serverapp"):
                os.kill(pid, signal.SIGKILL)

    settings = {"rounds": 3, "evaluate-every": 1, "seed": 5}
    with pytest.raises(DeployError, match="the run finished, failed"):
        rig.run(on_line, **settings)
    for before, site, users in zip(seen[0], (1, 2), (40, 20), strict=True):
        assert len(of_round(before, 2)) == users
        assert of_round(rig.states(site), 2) == of_round(before, 2)
    lines, result = rig.run(resume=True, **settings)
    assert len(rounds(lines)) in (1, 2)  # round 2's checkpoint may or may not have been written
    named = {"fraction": 1.0, "dtype": "float64", **settings}
    ours = simulate(rig.machine.data, tmp_path / "ours", log="none", **named)
    assert result.metric("full.ndcg@10") == pytest.approx(ours.metric("full.ndcg@10"), abs=1e-9)


def test_superlink_is_killed_and_restarted(rig: Rig, tmp_path: Path) -> None:
    """U034: with its database the run goes on, to the same numbers."""
    seen = []

    def on_line(line: str) -> None:
        if line.startswith("round 1/"):
            seen.append([rig.states(site) for site in (1, 2)])
            rig.kill("superlink")
            rig.running.start_superlink()
            seen.append([rig.states(site) for site in (1, 2)])

    lines, result = rig.run(on_line, seed=6)
    assert [failures(line) for line in rounds(lines)] == [0, 0, 0]
    for before, after, users in zip(*seen, (40, 20), strict=True):
        assert len(of_round(before, 1)) == users
        assert of_round(after, 1) == of_round(before, 1)
    named = {"fraction": 1.0, "dtype": "float64", "evaluate-every": 100, "rounds": 3, "seed": 6}
    ours = simulate(rig.machine.data, tmp_path / "ours", log="none", **named)
    assert result.metric("full.ndcg@10") == pytest.approx(ours.metric("full.ndcg@10"), abs=1e-9)


def test_supernode_is_killed_and_comes_back_at_once_and_later(rig: Rig) -> None:
    """U013: rounds go on without the site, which goes on from its own state when it is back."""
    # Site 1 makes rounds 3 and 6 last until site 2 is back.
    rig.fault(1, r3="hold", r6="hold")
    seen, threads = [], []

    def come_back(seconds: int) -> None:
        time.sleep(seconds)
        rig.start_site(2)
        seen.append(rig.states(2))
        rig.go(1, online=2)

    def on_line(line: str) -> None:
        for round, seconds in ((1, 5), (4, 90)):
            if line.startswith(f"round {round}/"):
                seen.append(rig.states(2))
                rig.kill(rig.site(2))
                threads.append(threading.Thread(target=come_back, args=(seconds,)))
                threads[-1].start()

    lines, result = rig.run(on_line, rounds=7)
    for thread in threads:
        thread.join()
    for before, after, round in ((seen[0], seen[1], 1), (seen[2], seen[3], 4)):
        assert up_to(after, round) == up_to(before, round)
    assert len(rounds(lines)) == 7
    assert "users 60" in rounds(lines)[3]
    assert "users 60" in rounds(lines)[6]
    assert result.values["users"]["trained"] == 60


def test_a_site_is_cut_off_for_two_rounds(rig: Rig) -> None:
    names = (rig.site(2), f"{rig.site(2)}-exec")
    rig.fault(1, r4="hold")
    seen = []

    def on_line(line: str) -> None:
        if line.startswith("round 1/"):
            for name in names:
                rig.signal(name, signal.SIGSTOP)
            seen.append(rig.states(2))
        if line.startswith("round 3/"):
            seen.append(rig.states(2))
            for name in names:
                rig.signal(name, signal.SIGCONT)
            threading.Thread(target=rig.go, args=(1, 2)).start()

    lines, result = rig.run(on_line, rounds=5)
    assert seen[0]
    assert seen[1] == seen[0]
    assert any(f"{rig.site(2)} is away" in line for line in lines)
    assert any(f"{rig.site(2)} is back" in line for line in lines)
    assert "users 60" not in rounds(lines)[2]
    assert "users 60" in rounds(lines)[-1]
    assert result.values["users"]["trained"] == 60


def test_no_data_data_of_others_and_a_store_of_others(rig: Rig, tmp_path: Path) -> None:
    other = tmp_path / "other.csv"
    other.write_text("user,item\n" + "".join(f"u{u},z{i}\n" for u in range(9) for i in range(9)))
    own = rig.machine.local_site(rig.machine.sites[1]).node_config
    wrong = {
        "site-3": {"interactions": str(tmp_path / "none.csv"), "state": str(tmp_path / "3")},
        "site-4": {"interactions": str(other), "state": str(tmp_path / "4")},
        "site-5": {"state": str(rig.machine.state(rig.site(1)))},
        "site-6": {},  # another name on site 2's own data and store
    }
    make_certificates(rig.running.certificates, wrong, existing="keep")
    for name, config in wrong.items():
        rig.running.operator.register(rig.running.certificates / name / "node.pub", name)
        rig.running.start_supernode(LocalSite(name, {**own, "site": name, **config}))
    for name in wrong:
        rig.running.start_client_executor(name)
    rig.running.wait_online(6)
    lines, result = rig.run(rounds=2, min_nodes=2)
    rig.running.processes.stop(*(f"{name}-exec" for name in wrong), *wrong)
    said = "\n".join(lines)
    assert re.search(r"site-3: .*none\.csv", said)
    assert re.search(r"site-4: .*none of its 9 items is in the catalogue", said)
    assert re.search(r"site-5: .* belongs to site 'site-1'", said)
    assert re.search(r"site-6: .* belongs to site 'site-2'", said)
    assert result.values["users"]["all"] == 60


def test_a_killed_node_is_replaced_by_one_with_another_key(rig: Rig) -> None:
    """U035: Flower lists the dead node for a minute yet; nobody is counted twice."""
    name, site = "site-2-again", rig.machine.sites[1]
    rig.fault(1, r3="hold")
    seen: list[States] = []

    def replace() -> None:
        make_certificates(rig.running.certificates, [name], existing="keep")
        rig.running.operator.register(rig.running.certificates / name / "node.pub", name)
        rig.running.start_supernode(LocalSite(name, rig.machine.local_site(site).node_config))
        rig.running.start_client_executor(name)

    def go_on() -> None:
        time.sleep(25)  # round 3 lasts until the new node has said who it is
        seen.append(rig.states(2))
        rig.go(1, online=2)

    def on_line(line: str) -> None:
        if line.startswith("round 1/"):
            seen.append(rig.states(2))
            rig.kill(site.name)
            replace()
        if line.startswith("round 2/"):
            threading.Thread(target=go_on).start()

    lines, result = rig.run(on_line, rounds=5)
    assert f"{site.name} has another node now" in lines or f"{site.name} is back" in lines
    users = [int(re.findall(r"users (\d+)", line)[0]) for line in rounds(lines)]
    assert users[:2] == [60, 40]
    assert users[-1] == 60
    assert set(users) == {40, 60}, "nobody is counted twice"
    assert len(up_to(seen[0], 1)) == 20
    assert up_to(seen[1], 1) == up_to(seen[0], 1)
    assert result.values["users"]["trained"] == 60
