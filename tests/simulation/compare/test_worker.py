"""What the processes of a comparison say of the time a cell takes."""

import io
import json
import time

from fedrecgel.simulation.compare.worker import _Telling


def _last(answers: io.StringIO) -> dict[str, float]:
    return json.loads(answers.getvalue().splitlines()[-1])


def test_only_processor_time_counts_against_the_limit() -> None:
    answers = io.StringIO()
    with _Telling(answers) as telling:
        time.sleep(0.6)
        waited = _last(answers)["elapsed"]
        busy = time.process_time()
        while time.process_time() - busy < 0.3:
            pass
        telling.on_round({"round": 7})
    assert waited < 0.3
    assert _last(answers)["round"] == 7
    assert _last(answers)["elapsed"] >= 0.3
