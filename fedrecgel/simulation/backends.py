"""What carries a run's messages on this machine: this process alone, or Flower's Ray simulation."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.clientapp import ClientApp

from fedrecgel.common.sizes import MessageSizes
from fedrecgel.server.strategy import FedRecStrategy
from fedrecgel.simulation.grid import InProcessGrid

BACKENDS = ("in-process", "ray")


@dataclass(frozen=True)
class Carrier:
    """One of `BACKENDS`, with the number of nodes that it has.

    Attributes
    ----------
    ray_address
        A running Ray cluster to use; empty = start one.
    """

    backend: str
    nodes: int
    ray_address: str = ""

    def start(
        self,
        strategy: FedRecStrategy,
        client_app: ClientApp,
        run_config: Mapping[str, str],
        sizes: MessageSizes,
        say: Callable[[str], None],
    ) -> None:
        """Run the strategy over nodes with the run-config given, to its end.

        ``say`` is told in one line what the backend uses.
        """
        if self.backend == "ray":
            # Imported here: Ray is optional, and takes seconds to import.
            from fedrecgel.simulation.ray import run_with_ray

            run_with_ray(
                strategy,
                client_app,
                dict(run_config),
                self.nodes,
                self.ray_address,
                sizes.down,
                say,
            )
        else:
            parts = range(self.nodes)
            configs = [{"partition-id": part, "num-partitions": self.nodes} for part in parts]
            strategy.start(InProcessGrid(client_app, configs, dict(run_config)))
