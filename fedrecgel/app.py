"""The Flower app's ServerApp: the server's half together with the report of a finished run.

It stands above the layers because the report belongs to `fedrecgel.simulation`, which the server
may not import. The ClientApp is `fedrecgel.client.app`.
"""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedrecgel.server.app import serve

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train, and write the run folder that run-config's ``out`` names."""
    # Imported when a run starts: plots and reports take a second to load.
    from fedrecgel.simulation.finish import write_result
    from fedrecgel.simulation.progress import Progress

    serve(grid, context, lambda rounds: Progress(rounds, "text"), write_result)
