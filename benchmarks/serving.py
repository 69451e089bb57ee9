"""How long an answer of ``fedrecgel serve`` takes: ``python -m benchmarks.serving [--quick]``.

An open loop: requests are sent at random times that were drawn beforehand, whether or not earlier
ones were answered, and an answer's time counts from the time its request was meant to be sent, also
where the sender itself came late. The server is bound to one core, the sender to the others. Prints
machine, versions and the table, and writes ``benchmarks/out/serving.json``.
"""

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded, for the server too
os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")

import contextlib
import datetime
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc
from numpy.typing import NDArray

from benchmarks.data import invent
from benchmarks.machine import describe
from fedrecgel.client.published import publish
from fedrecgel.client.site import Site
from fedrecgel.client.sqlite_store import SqliteStore
from fedrecgel.client.store import RANK_FIELDS
from fedrecgel.common.algorithms.registry import make_algorithm, make_config
from fedrecgel.common.data.dataset import Dataset
from fedrecgel.common.requests import EvaluateRequest, Experiment
from fedrecgel.serve.recommender_pb2 import SOURCE_FITTED, RecommendRequest
from fedrecgel.serve.recommender_pb2_grpc import RecommenderStub
from fedrecgel.serve.server import SERVICE

OUT = Path(__file__).parent / "out" / "serving.json"
ITEMS = 12_150
"""Some of the invented items are never drawn: about 12,000 are left."""
GATE_MS = 20.0


def measure(folder: Path, users: int, rate: float, seconds: float) -> dict[str, Any]:
    """All figures."""
    _leave_a_core()
    data = invent(folder, users, ITEMS)
    figures: dict[str, Any] = {"machine": describe(), "grpcio": grpc.__version__}
    figures |= {"date": datetime.date.today().isoformat(), "items": data.num_items}
    figures |= {"rate": rate, "seconds": seconds, "nice": _nice(), "runs": []}
    for scorer in ("dot", "neumf"):
        words = make_site(folder / scorer, data, scorer)
        for kind, asked in _scenarios(data, int(rate * seconds)).items():
            with _server(folder / scorer, words) as (address, process):
                before = _cpu_seconds(process.pid)
                found = send(address, asked, rate)
                found["cpu_ms"] = 1e3 * (_cpu_seconds(process.pid) - before) / len(asked)
                found["memory_mib"] = _memory(process.pid) >> 20
            figures["runs"].append({"scorer": scorer, "kind": kind, **found})
            print(_row(figures["runs"][-1]), flush=True)
    return figures


def _has_kept(data: Dataset) -> NDArray[np.bool_]:
    """Who has kept parameters: nine of ten users."""
    return np.arange(data.num_users) % 10 > 0


def make_site(folder: Path, data: Dataset, scorer: str) -> list[str]:
    """A site as a run leaves it, with initial parameters: they cost what trained ones do.

    Returns
    -------
    What `fedrecgel serve` must be told of it.
    """
    algorithm = make_algorithm(make_config("fedrecgel", {"scorer": scorer}), data.num_items)
    settings = algorithm.config.to_flat()
    experiment = Experiment("benchmark", "fedrecgel", settings, data.num_items)
    everyone, kept = np.arange(data.num_users), _has_kept(data)
    ids, template = data.user_ids.tolist(), algorithm.private_template
    store = SqliteStore(folder / "private.sqlite", experiment.id, "site", ids, template)
    state = algorithm.init_private(data.user_keys[kept])
    store.save(everyone[kept], np.zeros((1, kept.sum()), dtype=np.int64), 1, state)
    store.finish(everyone, kept.astype(np.int64), np.full((len(ids), RANK_FIELDS), -1))
    store.close()
    shared = algorithm.init_server().shared
    site = Site("site", data, 0, data.num_users, folder)
    publish(site, EvaluateRequest(experiment, 1, "test", True, kept.astype(np.int64), shared))
    file = folder / "interactions.csv"
    rows = [f"{ids[u]},{data.item_ids[i]}" for u in range(len(ids)) for i in data.train_of(u)]
    file.write_text("user,item\n" + "\n".join(rows) + "\n")
    return ["--state", str(folder), "--interactions", str(file)]


def _scenarios(data: Dataset, count: int) -> dict[str, list[str]]:
    """Who asks, in order."""
    draw, has_kept = np.random.default_rng(0), _has_kept(data)
    kept, others = (draw.permutation(np.flatnonzero(t)) for t in (has_kept, ~has_kept))
    returning = draw.choice(kept[: max(1, len(kept) // 10)], count)
    mixed = kept[:count].copy()
    new = others[: len(mixed[49::50])]
    mixed[49::50][: len(new)] = new
    found = {
        "another user each time": kept[:count],
        "users come back": returning,
        "one in fifty is new": mixed,
    }
    return {kind: data.user_ids[users].tolist() for kind, users in found.items()}


def send(address: str, users: list[str], rate: float) -> dict[str, Any]:
    """Send a request for each user at its time; milliseconds of the answers."""
    gaps = np.random.default_rng(1).exponential(1 / rate, len(users))
    sent, answered = np.full((2, len(users)), np.nan)
    fitted = np.zeros(len(users), dtype=bool)
    left = threading.Semaphore(0)
    with grpc.insecure_channel(address) as channel:
        stub = RecommenderStub(channel)
        stub.Recommend(RecommendRequest(user=users[0], k=1))
        due = time.perf_counter() + 0.2 + np.cumsum(gaps)

        def note(place: int, call: Any) -> None:  # noqa: ANN401 - gRPC has no types
            answered[place] = time.perf_counter()
            if not call.exception():
                fitted[place] = call.result().source == SOURCE_FITTED
            else:
                answered[place] = np.nan
            left.release()

        for place, user in enumerate(users):
            wait = due[place] - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
            sent[place] = time.perf_counter()
            call = stub.Recommend.future(RecommendRequest(user=user, k=10))
            call.add_done_callback(lambda call, place=place: note(place, call))
        for _ in users:
            left.acquire()
    taken = 1e3 * (answered - due)
    failed = int(np.isnan(taken).sum())
    known = taken[~fitted & ~np.isnan(taken)]
    return {
        "requests": len(users),
        "failed": failed,
        **{f"p{share}": float(np.percentile(known, share)) for share in (50, 95, 99)},
        "most": float(known.max()),
        "late_p99": float(np.percentile(1e3 * (sent - due), 99)),
        "fits": int(fitted.sum()),
        "fit_p50": float(np.median(taken[fitted])) if fitted.any() else None,
    }


@contextlib.contextmanager
def _server(folder: Path, words: list[str]) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    socket = f"unix:{folder}/socket"
    words = [sys.executable, "-m", "fedrecgel", "serve", *words, "--address", socket]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, preexec_fn=_take_the_core)
    try:
        with grpc.insecure_channel(socket) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=SERVICE)
            stub.Check(request, wait_for_ready=True, timeout=120)
        yield socket, process
    finally:
        process.terminate()
        process.wait()


def _cores() -> set[int]:
    """Where this process may run (Linux; elsewhere unknown, and nothing is bound)."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()


CORES = _cores()
"""As this process was started."""


def _take_the_core() -> None:
    """In the server, before it starts."""
    if CORES:
        os.sched_setaffinity(0, {max(CORES)})


def _leave_a_core() -> None:
    """In the sender: the server's core is no longer its own, where there is another one."""
    if len(CORES) > 1:
        os.sched_setaffinity(0, CORES - {max(CORES)})


def _nice() -> int:
    """Priority of this process and of the server, which inherits it."""
    return os.getpriority(os.PRIO_PROCESS, 0)


def _cpu_seconds(process: int) -> float:
    """Processor time that a process has used (Linux)."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return float("nan")
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory(process: int) -> int:
    """Bytes that a process holds (Linux)."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def _row(run: dict[str, Any]) -> str:
    met = "met" if run["p99"] <= GATE_MS and not run["failed"] else "MISSED"
    fits = f"{run['fits']} ({run['fit_p50']:.0f})" if run["fits"] else "–"
    return (
        f"| {run['scorer']} | {run['kind']} | {run['requests']:,} | {run['failed']} "
        f"| {run['cpu_ms']:.1f} | {run['p50']:.1f} | {run['p95']:.1f} | {run['p99']:.1f} "
        f"| {run['most']:.1f} | {run['late_p99']:.1f} | {run['memory_mib']} | {fits} | {met} |"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving")
    parser.add_argument("--quick", action="store_true", help="10 seconds each instead of 40")
    parser.add_argument("--tiny", action="store_true", help="a second: does it run?")
    parser.add_argument("--rate", type=float, default=50.0, help="requests a second")
    parser.add_argument("--out", type=Path, default=OUT, help="file to write")
    given = parser.parse_args(arguments)
    seconds = 1.0 if given.tiny else 10.0 if given.quick else 40.0
    users = 100 if given.tiny else 3_000
    print(
        "| scorer | who asks | requests | failed | processor ms each | p50 ms | p95 | p99 | most "
        "| sent late, p99 | MiB | new users (median ms) | p99 ≤ 20 ms |\n"
        "| --- | --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --- |"
    )
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), users, given.rate, seconds)
    machine = figures["machine"]
    print(
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load']}; Python "
        f"{machine['python']}, torch {machine['torch']}, grpcio {figures['grpcio']}; "
        f"{figures['date']}; {figures['items']:,} items, {given.rate:g} requests/s, one core, "
        f"nice {figures['nice']}"
    )
    given.out.parent.mkdir(parents=True, exist_ok=True)
    given.out.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
