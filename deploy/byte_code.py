"""Import what the containers' processes import, so that its byte code is written once.

The root of the file system is read-only at run time, and neither pip nor the base image leaves byte
code: each process, and there is one for every message, would compile all of it again.
"""

import importlib
import importlib.metadata

MODULES = [
    "flwr.clientapp",
    "flwr.serverapp.strategy",
    "grpc_health.v1.health",
    "grpc_reflection.v1alpha.reflection",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "pandas",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.json",
    "pyarrow.parquet",
    "safetensors.torch",
    "sqlite3",
    "torch",
    "torch.func",
    "tqdm",
]


def main() -> None:
    """Import, and do the few things that import more when they are first used."""
    for name in MODULES:
        importlib.import_module(name)
    for script in importlib.metadata.entry_points(group="console_scripts"):
        if script.value.startswith("flwr."):
            script.load()

    import torch

    weight = torch.nn.Parameter(torch.zeros(2, 2))
    for kind in (torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad):
        weight.square().sum().backward()
        kind([weight]).step()
    torch.func.grad(lambda x: x.square().sum())(torch.ones(2))

    import pandas as pd

    pd.DataFrame({"a": ["x", "y"]}).groupby("a").size().sort_values()

    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set_title("x")
    FigureCanvasAgg(figure).draw()


if __name__ == "__main__":
    main()
