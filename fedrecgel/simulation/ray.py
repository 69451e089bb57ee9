"""Backend ``ray``: the same Strategy and ClientApp through Flower's simulation, in many processes.

Flower has no supported call that runs a simulation from Python: ``run_simulation`` is deprecated
in favour of ``flwr run``, which needs an app folder and a SuperLink. This module calls what both
are made of. It is the only one that uses private parts of Flower's simulation, and is tested on the
oldest and the newest supported Flower.
"""

import importlib.util
import logging
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedrecgel.client.app import answered
from fedrecgel.common.errors import ConfigError
from fedrecgel.common.state import resolve_device
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.resources import (
    Resources,
    free_memory,
    free_shared_memory,
    plan,
    usable_cores,
)

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray would rebuild the environment of a driver that uv started.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    # Ray's coming default, without the warning about it.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}
WORKER_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
SECONDS_TO_STOP = 10.0
PREFIX = "fedrecgel-ray-"
"""Ray's temporary folders are called so, with the number of the process behind it."""


def run_with_ray(
    strategy: FedRecStrategy,
    client_app: ClientApp,
    run_config: dict[str, str],
    nodes: int,
    address: str,
    message: int,
    say: Callable[[str], None],
) -> None:
    """Run a strategy over simulated nodes, to its end.

    Parameters
    ----------
    address
        A running Ray cluster (``host:port``); empty = ``$RAY_ADDRESS``, else one is started here
        and its folder removed at the end.
    message
        Bytes of the shared tensors, for planning memory.
    say
        Told in one line what Ray gets.

    Raises
    ------
    ConfigError
        When Ray is not installed, or the cluster is not there.
    """
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(
            "backend ray needs Ray, which is not installed (or has no package for this Python); "
            "run: pip install 'fedrecgel[simulation]', or use the in-process backend"
        )
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    gpus = _gpus() if resolve_device(strategy.config.device).type == "cuda" else 0
    resources = plan(
        nodes,
        message,
        cores=usable_cores(),
        memory=free_memory(),
        shared_memory=free_shared_memory(),
        gpus=gpus,
    )
    address = address or os.environ.get("RAY_ADDRESS", "")
    with _ray(resources, address, nodes, say) as gpus_each:
        _simulate(strategy, _Configured(client_app, run_config), nodes, gpus_each)


@dataclass(frozen=True)
class _Configured:
    """A ClientApp that sees a run-config: a simulation from Python gives nodes none."""

    app: ClientApp
    run_config: dict[str, str]

    def __call__(self, message: Message, context: Context) -> Message:
        own = Context(
            run_id=context.run_id,
            node_id=context.node_id,
            node_config=context.node_config,
            state=context.state,
            run_config=dict(self.run_config),
        )
        return answered(self.app)(message, own)


class _Stopped(BaseException):
    """Ends the strategy's thread after Ctrl-C in the main one."""


class _StoppableGrid(Grid):
    """A Grid whose calls end when the simulation is stopped."""

    def __init__(self, grid: Grid, stop: threading.Event) -> None:
        self._grid, self._stop = grid, stop

    def set_run(self, run: Any) -> None:  # noqa: ANN401 - Flower's type moved between versions
        self._grid.set_run(run)

    @property
    def run(self) -> Any:  # noqa: ANN401 - as above
        """See `Grid.run`."""
        return self._grid.run

    def create_message(self, *args: Any, **options: Any) -> Message:  # noqa: ANN401 - passed on
        return self._grid.create_message(*args, **options)

    def get_node_ids(self) -> Iterable[int]:
        self._check()
        return self._grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self._check()
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        self._check()
        return self._grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self._check()
        return self._grid.send_and_receive(messages, timeout=timeout)

    def _check(self) -> None:
        if self._stop.is_set():
            raise _Stopped


def _simulate(
    strategy: FedRecStrategy, client_app: _Configured, nodes: int, gpus_each: float
) -> None:
    from flwr.simulation.run_simulation import _run_simulation
    from flwr.supercore.telemetry import EventType

    stop, ended = threading.Event(), threading.Event()
    errors: list[BaseException] = []
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            strategy.start(_StoppableGrid(grid, stop))
        except BaseException as error:  # Flower would print it; it is raised below
            errors.append(error)
        finally:
            ended.set()

    flower = logging.getLogger("flwr")
    level = flower.level
    flower.setLevel(logging.ERROR)
    try:
        _run_simulation(
            num_supernodes=nodes,
            exit_event=EventType.PYTHON_API_RUN_SIMULATION_LEAVE,
            client_app=client_app,  # type: ignore[arg-type] # called like one
            server_app=server_app,
            backend_config={"client_resources": {"num_cpus": 1, "num_gpus": gpus_each}},
        )
    except BaseException:
        stop.set()
        ended.wait(SECONDS_TO_STOP)
        raise
    finally:
        flower.setLevel(level)
    if errors:
        raise errors[0]


@contextmanager
def _ray(
    resources: Resources, address: str, nodes: int, say: Callable[[str], None]
) -> Iterator[float]:
    """A Ray that is there while the block runs; gives the share of a GPU for each actor.

    Flower uses a Ray that is there already instead of starting its own.
    """
    import ray

    path = os.pathsep.join([*sys.path, *filter(None, [os.environ.get("PYTHONPATH")])])
    options: dict[str, Any] = {
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": logging.ERROR,
        "runtime_env": {"env_vars": {"PYTHONPATH": path, **WORKER_ENVIRONMENT}},
    }
    folder = ""
    try:
        if address:
            _connect(address, options)
            found = ray.cluster_resources()  # type: ignore[no-untyped-call]
            cpus, gpus = (found.get(kind, 0) for kind in ("CPU", "GPU"))
            gpus_each = int(gpus / max(cpus, 1) * 1000) / 1000 if resources.gpus else 0.0
            line = f"Ray at {address}: {cpus:g} actors of 1 CPU, 1 thread each, {nodes:,} nodes"
        else:
            # Ray's sockets lie in it, and their path may not be long.
            for old in abandoned_folders():
                shutil.rmtree(old, ignore_errors=True)
            prefix = f"{PREFIX}{os.getpid()}-"
            folder = tempfile.mkdtemp(prefix=prefix, dir=_short_folder())
            ray.init(
                num_cpus=resources.actors,
                num_gpus=resources.gpus,
                object_store_memory=resources.store,
                _temp_dir=folder,
                **options,
            )
            gpus_each, line = resources.gpus_each, resources.line
        say(line)
        yield gpus_each
    finally:
        ray.shutdown()
        if folder:
            shutil.rmtree(folder, ignore_errors=True)


def _connect(address: str, options: dict[str, Any]) -> None:
    import ray

    _refuse_deaf(address)
    try:
        ray.init(address=address, **options)
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"no Ray cluster at {address} ({reason}); start one with: ray start --head"
        ) from None


def _refuse_deaf(address: str) -> None:
    """Ask the address itself: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return  # "auto", "local" or an address of Ray's client
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except OSError as error:
        raise ConfigError(
            f"no Ray cluster at {address} ({error.strerror or error}); start one with: "
            "ray start --head"
        ) from None


def abandoned_folders() -> list[Path]:
    """Ray's temporary folders of runs that were killed: their process is gone."""
    found = []
    for folder in Path(_short_folder()).glob(f"{PREFIX}*-*"):
        owner = folder.name.removeprefix(PREFIX).partition("-")[0]
        try:
            os.kill(int(owner), 0)
        except ProcessLookupError:
            found.append(folder)
        except (ValueError, OSError):
            continue
    return found


def _short_folder() -> str:
    found = tempfile.gettempdir()
    return found if len(found) < 30 or not os.path.isdir("/tmp") else "/tmp"


def _gpus() -> int:
    import torch

    return torch.cuda.device_count()
