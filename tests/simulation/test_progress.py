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


def shown(*failures: tuple[str, str, str]) -> list[str]:
    stream = io.StringIO()
    progress = Progress(3, "text", stream)
    for site, reason, detail in failures:
        progress.on_failure(site, Failure(7, reason, detail))
    return stream.getvalue().splitlines()


def test_a_failure_is_one_line_and_a_defect_has_its_traceback() -> None:
    assert shown(("site-1", "failed", "the disk is full\n")) == ["site-1: failed: the disk is full"]
    assert shown(("site-1", "crashed", "")) == ["site-1: crashed"]
    defect = shown(("site-1", "failed", "Traceback\n  File x\nKeyError: 3"))
    assert defect == ["site-1: failed", "Traceback", "  File x", "KeyError: 3"]


def test_the_traceback_of_a_defect_that_all_nodes_have_is_shown_once() -> None:
    trace = "Traceback\n  File x\nKeyError: 3"
    lines = shown(("site-1", "failed", trace), ("site-2", "failed", f"{trace}\n"))
    assert lines == [
        "site-1: failed",
        *trace.splitlines(),
        "site-2: failed: KeyError: 3",
    ]


def test_what_fails_otherwise_or_elsewhere_is_told_too_and_what_repeats_is_not() -> None:
    full, gone = ("site-1", "failed", "the disk is full"), ("site-1", "failed", "no such file")
    crashed = [("site-1", "crashed", ""), ("site-2", "crashed", "")]
    assert shown(full, gone, full, *crashed, *crashed) == [
        "site-1: failed: the disk is full",
        "site-1: failed: no such file",
        "site-1: crashed",
        "site-2: crashed",
    ]


def test_thousands_that_fail_alike_are_not_all_told() -> None:
    lines = shown(*((f"site-{n}", "crashed", "") for n in range(9000)))
    assert lines[-2:] == ["site-4: crashed", "more of 'crashed' is counted, not told"]
    assert len(lines) == 6
