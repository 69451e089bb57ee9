"""What is shown of a run while it goes on."""

import io
import json

from fedrecgel.server.exchange import Failure
from fedrecgel.simulation.progress import Progress


def test_json_is_json_in_every_line() -> None:
    stream = io.StringIO()
    progress = Progress(3, "json", stream)
    progress.say("2 nodes")
    progress.on_failure("site-1", Failure(7, "failed", "Traceback\n  File x\nValueError: disk"))
    progress.on_failure("site-2", Failure(8, "failed", "the same again"))
    progress.on_round({"round": 1, "loss": 0.5})
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines == [
        {
            "failure": "failed",
            "site": "site-1",
            "detail": "Traceback\n  File x\nValueError: disk",
        },
        {"round": 1, "loss": 0.5},
    ]
