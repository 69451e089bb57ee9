"""What is passed on of what `flwr` prints."""

import pytest

from fedrecgel.deploy.control import _reason, _told


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("round 1/5 loss 0.6 users 123 4.2 s\n", "round 1/5 loss 0.6 users 123 4.2 s"),
        ("\x1b[92mINFO \x1b[0m:      Start `flwr-serverapp` process\n", ""),
        (
            "\x1b[91mERROR \x1b[0m:     error: 1 of 3 nodes are there",
            "error: 1 of 3 nodes are there",
        ),
        ("Using SuperLink: deployment (127.0.0.1:1)", ""),
        ("Successfully installed fedrecgel to /x", ""),
        ("Exit Code: 201", ""),
        ("\n", ""),
    ],
)
def test_only_the_server_app_and_errors_are_heard(line: str, told: str) -> None:
    assert _told(line) == told


def test_a_reason_is_one_line_without_frames() -> None:
    assert _reason("╭─ Error ─╮\n│ not  allowed │\n╰─╯") == "Error not allowed"
    assert _reason('{"success": false, "error-message": "no\\nway"}') == "no way"
    assert _reason("") == "it said nothing"
