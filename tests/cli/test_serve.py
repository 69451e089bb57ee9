"""`fedrecgel serve` and `fedrecgel ask`: what is wrong is one line."""

from pathlib import Path

import pytest

from fedrecgel.cli import main

BROKEN = [
    (["serve"], "give what to serve: --state DIR --interactions FILE of a site, or --run RUN"),
    (["serve", "--state", "s"], "give what to serve"),
    (["serve", "--run", "r", "--state", "s"], "give --run, or the site's --state"),
    (["serve", "--run", "nothing"], "nothing is not a run folder"),
    (["serve", "--run", "r", "--threads", "0"], "--threads must be at least 1"),
    (["serve", "--run", "r", "--tls-cert", "c"], "TLS needs both --tls-cert and --tls-key"),
    (["serve", "--run", "r", "--tls-client-ca", "c"], "TLS needs both"),
    (
        ["serve", "--run", "r", "--tls-cert", "c", "--tls-key", "k", "--plaintext"],
        "--plaintext contradicts --tls-cert",
    ),
    (["serve", "--run", "r", "--tls-cert", "c", "--tls-key", "k"], "cannot read k"),
    (["serve", "--run", "r", "--address", "192.0.2.1:0"], "can be reached from elsewhere"),
    (["ask", "localhost:1", "u", "--tls-cert", "c"], "give --tls-ca"),
]


@pytest.mark.parametrize(("words", "line"), BROKEN, ids=lambda value: str(value)[:40])
def test_what_is_wrong_is_one_line(
    words: list[str],
    line: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    words = [*words, "--address", "127.0.0.1:0"] if words[0] == "serve" else words
    if "192.0.2.1:0" in words:
        words = words[:-2]
    assert main(words) == 2
    found = capsys.readouterr().err
    assert found.count("\n") == 1
    assert line in found
