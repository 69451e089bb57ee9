"""A real server: calls over the wire, health, reflection, TLS, takeover, its end."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fedrecgel import Result
from fedrecgel.cli import main
from fedrecgel.cli.serve import RunPlace
from fedrecgel.common.errors import ConfigError, FedRecError, RunError
from fedrecgel.deploy import health
from fedrecgel.deploy.certificates import Authority
from fedrecgel.serve.ask import Client
from fedrecgel.serve.current import Current
from fedrecgel.serve.model import Model
from fedrecgel.serve.recommender_pb2 import RecommendRequest, ScoreRequest
from fedrecgel.serve.recommender_pb2_grpc import RecommenderStub
from fedrecgel.serve.server import SERVICE, Server, Tls, is_loopback, run_until_told

LOOPBACK = "127.0.0.1:0"


class Shelf:
    """A place whose model is put there by the test."""

    def __init__(self, model: Model | None = None) -> None:
        self.model = model

    def stamp(self) -> Hashable:
        return id(self.model)

    def load(self) -> Model:
        if self.model is None:
            raise RunError("no model has been published yet")
        return self.model


@contextlib.contextmanager
def serving(place: Any, address: str = LOOPBACK, tls: Tls | None = None) -> Iterator[Any]:
    current = Current(place, lambda text: None)
    current.refresh()
    server = Server(current, address, tls)
    server.start()
    try:
        yield server, current
    finally:
        server.stop(grace=1.0)


@pytest.fixture(scope="module")
def model(served_run: Result) -> Model:
    return RunPlace(served_run.path).load()


@pytest.fixture(scope="module")
def address(model: Model) -> Iterator[str]:
    with serving(Shelf(model)) as (server, _):
        yield server.address


@pytest.fixture
def stub(address: str) -> Iterator[RecommenderStub]:
    with grpc.insecure_channel(address) as channel:
        yield RecommenderStub(channel)


def kept_user(result: Result) -> str:
    users = np.arange(result.data.num_users)
    return str(result.data.user_ids[result.store().load_chosen(users)[1]][0])


def test_the_wire_says_what_the_run_says(address: str, served_run: Result) -> None:
    user = kept_user(served_run)
    expected = served_run.recommend(user, 4)
    with Client(address) as client:
        reply = client.recommend(user, 4)
        scores = client.score(user, [item.item for item in expected])
    assert [item["item"] for item in reply["items"]] == [item.item for item in expected]
    assert scores["items"] == reply["items"]
    experiment = served_run.values["experiment"]
    model = {"experiment": experiment, "algorithm": "fedrecgel", "round": served_run.round}
    assert (reply["source"], reply["model"]) == ("kept", model)


def test_k_is_ten_where_it_is_not_given(stub: RecommenderStub) -> None:
    assert len(stub.Recommend(RecommendRequest(user="nobody")).items) == 10


@pytest.mark.parametrize(
    ("request_", "code", "line"),
    [
        (RecommendRequest(user="u", k=0), "INVALID_ARGUMENT", "k must be between 1 and 1,000"),
        (RecommendRequest(user="u", k=1001), "INVALID_ARGUMENT", "not 1001"),
        (RecommendRequest(user="u", k=-1), "INVALID_ARGUMENT", "not -1"),
        (RecommendRequest(k=3), "INVALID_ARGUMENT", "names no user"),
        (ScoreRequest(items=["i1"]), "INVALID_ARGUMENT", "names no user"),
        (ScoreRequest(user="u"), "INVALID_ARGUMENT", "give 1 to 10,000 items, not 0"),
        (ScoreRequest(user="u", items=["x"] * 10_001), "INVALID_ARGUMENT", "not 10001"),
        (ScoreRequest(user="u", items=["nothing"]), "NOT_FOUND", "no item 'nothing' among the"),
    ],
)
def test_wrong_input_is_a_status_with_one_line(
    stub: RecommenderStub, request_: Any, code: str, line: str
) -> None:
    call = stub.Recommend if isinstance(request_, RecommendRequest) else stub.Score
    with pytest.raises(grpc.RpcError) as found:
        call(request_)
    assert found.value.code().name == code
    assert line in found.value.details()
    assert "\n" not in found.value.details()


def test_a_defect_is_internal_and_its_text_stays_here(
    served_run: Result, capfd: pytest.CaptureFixture[str]
) -> None:
    model = RunPlace(served_run.path).load()
    model.recommend = lambda user, *rest, **more: {}[user]  # type: ignore[method-assign]
    line = "a defect of the server: KeyError"
    with (
        serving(Shelf(model)) as (server, _),
        Client(server.address) as client,
        pytest.raises(FedRecError, match=line),
    ):
        client.recommend("Quixote")
    printed = capfd.readouterr().err
    assert "KeyError" in printed
    assert "Quixote" not in printed


def test_health_tells_whether_there_is_a_model(model: Model) -> None:
    shelf = Shelf()
    with serving(shelf) as (server, current), grpc.insecure_channel(server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        states = health_pb2.HealthCheckResponse
        asked = [health_pb2.HealthCheckRequest(service=name) for name in ("", SERVICE)]
        found = [health.Check(request).status for request in asked]
        assert found == [states.SERVING, states.NOT_SERVING]
        with pytest.raises(grpc.RpcError) as error:
            RecommenderStub(channel).Recommend(RecommendRequest(user="u"))
        assert error.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert error.value.details() == "no model has been published yet"
        shelf.model = model
        current.refresh()
        found = [health.Check(request).status for request in asked]
        assert found == [states.SERVING, states.SERVING]


def test_reflection_describes_the_service(address: str) -> None:
    with grpc.insecure_channel(address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        requests = [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
        listed, described = stub.ServerReflectionInfo(iter(requests))
    names = {service.name for service in listed.list_services_response.service}
    assert {SERVICE, "grpc.health.v1.Health"} <= names
    file = FileDescriptorProto.FromString(
        described.file_descriptor_response.file_descriptor_proto[0]
    )
    assert [method.name for method in file.service[0].method] == ["Recommend", "Score"]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority = Authority.create(folder)
    for name, client in (("server", False), ("client", True)):
        certificate, key = authority.issue(["localhost", "127.0.0.1"], client=client)
        (folder / f"{name}.crt").write_bytes(certificate)
        (folder / f"{name}.key").write_bytes(key)
    return folder


def test_tls_and_nothing_but_tls(model: Model, certificates: Path) -> None:
    tls = Tls(certificates / "server.crt", certificates / "server.key")
    with serving(Shelf(model), tls=tls) as (server, _):
        with Client(f"localhost:{server.port}", certificates / "ca.crt") as client:
            assert client.recommend("nobody", 3)["source"] == "popularity"
        with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError):
            RecommenderStub(channel).Recommend(RecommendRequest(user="u"), timeout=5)


def test_with_mutual_tls_only_certified_clients_get_in(model: Model, certificates: Path) -> None:
    ca = certificates / "ca.crt"
    tls = Tls(certificates / "server.crt", certificates / "server.key", ca)
    with serving(Shelf(model), tls=tls) as (server, _):
        pair = (certificates / "client.crt", certificates / "client.key")
        with Client(server.address, ca, pair) as client:
            assert client.recommend("nobody", 3)["source"] == "popularity"
        credentials = grpc.ssl_channel_credentials(ca.read_bytes())
        with (
            grpc.secure_channel(server.address, credentials) as channel,
            pytest.raises(grpc.RpcError),
        ):
            RecommenderStub(channel).Recommend(RecommendRequest(user="u"), timeout=5)


def test_files_for_tls_that_will_not_do_are_named(model: Model, certificates: Path) -> None:
    current = Current(Shelf(model), lambda text: None)
    good, key, junk = (certificates / name for name in ("server.crt", "server.key", "junk"))
    junk.write_text("junk")
    for tls, line in (
        (Tls(good, certificates / "client.key"), r"client\.key is not the key of .*server\.crt"),
        (Tls(junk, key), "junk is no certificate"),
        (Tls(good, junk), "junk is no private key"),
        (Tls(good, key, junk), "junk is no certificate of an authority"),
        (Tls(good, certificates / "none"), "cannot read .*none"),
    ):
        with pytest.raises(ConfigError, match=line):
            Server(current, LOOPBACK, tls)


def refused(words: list[str], capfd: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that ends soon with code 2."""
    began = time.monotonic()
    assert main(words) == 2
    assert time.monotonic() - began < 8
    # In this process gRPC was loaded before the command could silence it.
    printed = re.sub(r"^[EIW]\d{4} .*\n", "", capfd.readouterr().err, flags=re.MULTILINE)
    assert printed.count("\n") == 1, printed
    return printed


def test_grpc_itself_says_nothing(served_run: Result, tmp_path: Path) -> None:
    words = ["serve", "--run", str(served_run.path), "--address", f"unix:{tmp_path}/no/socket"]
    # Flower sets it in the process that runs the tests.
    variables = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    command = [sys.executable, "-m", "fedrecgel", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=120)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: cannot listen on unix:{tmp_path}/no/socket: there is no folder {tmp_path}/no\n"
    )


@pytest.mark.parametrize("user", ["\udcff", 3])
def test_a_request_that_no_message_can_hold_is_one_line(user: Any) -> None:
    with Client("unix:none") as client:
        for ask in (client.recommend, lambda user: client.score("u", [user])):
            with pytest.raises(ConfigError, match=r"cannot be sent: [^\n]+$"):
                ask(user)


def test_ask_says_why_nobody_answers(
    model: Model, certificates: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tls = Tls(certificates / "server.crt", certificates / "server.key")
    ca = ["--tls-ca", str(certificates / "ca.crt")]
    Authority.create(tmp_path)
    with serving(Shelf(model), tls=tls) as (server, _):
        words = ["ask", server.address, "u"]
        assert "speaks TLS; give --tls-ca" in refused(words, capfd)
        other = refused([*words, "--tls-ca", str(tmp_path / "ca.crt")], capfd)
        assert "is signed by another" in other
        assert main([*words, *ca]) == 0
    with serving(Shelf(model)) as (server, _):
        assert "TLS" in refused(["ask", server.address, "u", *ca], capfd)


def test_ask_says_that_it_needs_a_certificate(
    model: Model, certificates: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ca = certificates / "ca.crt"
    tls = Tls(certificates / "server.crt", certificates / "server.key", ca)
    with serving(Shelf(model), tls=tls) as (server, _):
        words = ["ask", server.address, "u", "--tls-ca", str(ca)]
        assert "give --tls-cert and --tls-key" in refused(words, capfd)


def test_the_health_check_of_a_container_asks_whether_there_is_a_model(
    model: Model, certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf, ca = Shelf(), str(certificates / "ca.crt")
    tls = Tls(certificates / "server.crt", certificates / "server.key")
    with serving(shelf, tls=tls) as (server, current):
        assert health.main(server.address, ca, SERVICE) == 1
        assert capsys.readouterr().out == f"{server.address} answers NOT_SERVING\n"
        assert health.main(server.address, ca, "another") == 1
        shelf.model = model
        current.refresh()
        assert health.main(server.address, ca, SERVICE) == 0
    assert health.main(server.address, ca, SERVICE) == 1


def test_plaintext_needs_a_word_where_others_can_listen(model: Model) -> None:
    current = Current(Shelf(model), lambda text: None)
    with pytest.raises(ConfigError, match=r"give --tls-cert and --tls-key, or --plaintext"):
        Server(current, "0.0.0.0:0")
    Server(current, "0.0.0.0:0", plaintext=True).stop(0)
    assert [is_loopback(a) for a in ("localhost:1", "[::1]:1", "127.3.0.1:1", "unix:/a")] == [
        True
    ] * 4
    assert not any(is_loopback(a) for a in ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "site-1:1"))


def test_a_port_in_use_is_one_line(model: Model, address: str) -> None:
    with pytest.raises(ConfigError, match=rf"cannot listen on {address}: it is in use$"):
        Server(Current(Shelf(model), lambda text: None), address)


def test_a_takeover_under_load_fails_no_request(served_run: Result, model: Model) -> None:
    shelf, user = Shelf(model), kept_user(served_run)
    stop, failures, counts = threading.Event(), [], [0, 0, 0]
    with serving(shelf) as (server, current):

        def ask(place: int) -> None:
            with grpc.insecure_channel(server.address) as channel:
                stub = RecommenderStub(channel)
                while not stop.is_set():
                    try:
                        reply = stub.Recommend(RecommendRequest(user=user, k=5))
                        counts[place] += len(reply.items) == 5
                    except grpc.RpcError as error:
                        failures.append(error)

        askers = [threading.Thread(target=ask, args=(place,)) for place in range(len(counts))]
        for asker in askers:
            asker.start()
        for _ in range(5):
            before = min(counts)
            shelf.model = RunPlace(served_run.path).load()
            assert current.refresh()
            while min(counts) < before + 5:  # each asker is answered by the new model
                time.sleep(0.01)
        stop.set()
        for asker in askers:
            asker.join()
    assert failures == []


def test_a_signal_ends_it_whichever_thread_gets_it() -> None:
    """Python runs its handler in the main thread, which another thread's signal does not wake."""

    class Silent:
        address, stopped = "unix:nowhere", False

        def start(self) -> None:
            pass

        def stop(self) -> None:
            self.stopped = True

    def to_itself() -> None:
        time.sleep(0.1)
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    server, began = Silent(), time.monotonic()
    # Ends a wait that the other signal did not end.
    late = threading.Timer(10, os.kill, (os.getpid(), signal.SIGTERM))
    late.start()
    try:
        run_until_told(server, threading.Thread(target=to_itself).start)  # type: ignore[arg-type]
    finally:
        late.cancel()
    assert server.stopped
    assert time.monotonic() - began < 5


def test_the_process_watches_and_ends_gracefully(
    served_run: Result, tmp_path: Path, model: Model
) -> None:
    """SIGTERM: exit code 0, the socket gone, nobody's id in what it printed."""
    socket = f"unix:{tmp_path}/socket"
    words = [sys.executable, "-m", "fedrecgel", "serve", "--run", str(served_run.path)]
    user = kept_user(served_run)
    with subprocess.Popen(
        [*words, "--address", socket], stderr=subprocess.PIPE, text=True, env={**os.environ}
    ) as process:
        with grpc.insecure_channel(socket) as channel:
            request = RecommendRequest(user=user, k=3)
            stub = RecommenderStub(channel)
            reply = stub.Recommend(request, wait_for_ready=True, timeout=120)
            assert len(reply.items) == 3
        process.send_signal(signal.SIGTERM)
        printed = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert f"serving on {socket}" in printed
    assert printed.splitlines()[-1] == "stopped"
    assert user not in printed
