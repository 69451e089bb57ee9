"""The Flower ServerApp: reads run-config, runs the Strategy, writes the run folder if asked to.

Settings are those of `Config`, by the same names; beside them run-config may hold ``algorithm``,
``preset``, ``min-nodes``, ``wait`` and ``out``, the run folder to write.
"""

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrecgel.common.algorithms.registry import make_config
from fedrecgel.common.errors import ConfigError
from fedrecgel.server.run_folder import CONFIG, FORMAT, RunFolder
from fedrecgel.server.strategy import FedRecStrategy

app = ServerApp()

OTHER = {"algorithm": "fedrecgel", "min-nodes": 1, "wait": 60.0, "out": "", "data": "", "state": ""}
"""Names in run-config that are not settings of training, and their defaults."""


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write ``config.json``, ``metrics.jsonl`` and the model to ``out``."""
    values: dict[str, Any] = dict(context.run_config)
    other = {name: values.pop(name, default) for name, default in OTHER.items()}
    config = make_config(str(other["algorithm"]), values)
    folder = RunFolder.create(Path(str(other["out"])), overwrite=False) if other["out"] else None

    def on_round(line: dict[str, Any]) -> None:
        if folder is not None and ("validation" in line or "test" in line):
            folder.append_metrics(line)

    if not isinstance(other["min-nodes"], int):
        raise ConfigError(f"'min-nodes' must be a whole number, not {other['min-nodes']!r}")
    strategy = FedRecStrategy(
        config, min_nodes=other["min-nodes"], wait=float(other["wait"]), on_round=on_round
    )
    if folder is not None:
        head = {"format": FORMAT, "algorithm": config.algorithm, "settings": config.to_flat()}
        folder.write_json(CONFIG, head)
    strategy.start(grid)
    if folder is not None and strategy.outcome is not None:
        folder.write_model(strategy.outcome.best.shared)
