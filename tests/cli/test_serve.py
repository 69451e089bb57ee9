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
    (["serve", "--run", "r", "--address", "127.0.0.1:99999"], "'127.0.0.1:99999' is no address"),
    (["serve", "--run", "r", "--address", "x"], "'x' is no address; give HOST:PORT"),
    (["serve", "--run", "r", "--address", "unix:no/x.sock"], "x.sock: there is no folder no"),
    (["serve", "--run", "r", "--address", "unix:file"], "file is there and is no socket"),
    (["serve", "--run", "r", "--address", "nowhere.invalid:1"], "can be reached from elsewhere"),
    (["serve", "--state", "s", "--interactions", "good"], "there is no state folder s"),
    (["serve", "--state", ".", "--interactions", "i"], "no interactions at i"),
    (["serve", "--state", ".", "--interactions", "file"], "name its columns user, item and time"),
    (["serve", "--state", ".", "--interactions", "good", "--key-file", "k"], "key file k cannot"),
    (["ask", "localhost:1", "u", "--tls-cert", "c"], "give --tls-ca"),
    (["ask", "localhost:1", "u"], "localhost:1 does not answer (Connection refused)"),
    (["ask", "foo", "u"], "'foo' is no address; give HOST:PORT"),
    (["ask", "a..b:1", "u"], "'a..b' is no name of a machine"),
    (["serve", "--run", "r", "--address", "a..b:0", "--plaintext"], "'a..b' is no name"),
    (["serve", "--run", "r", "--address", "unix:"], "'unix:' names no socket; give unix:PATH"),
    (["ask", "unix:none", "u", "--k", "99999999999"], "k must be"),
    (["ask", "localhost:1", "u", "--tls-ca", "no"], "cannot read no: No such file"),
    (["ask", "localhost:1", "u", "--tls-ca", "file"], "file is no certificate of an authority"),
    (["ask", "unix:none", "u"], "unix:none: no answer"),
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
    (tmp_path / "file").write_text("mine")
    (tmp_path / "good").write_text("user,item\n" + "".join(f"u,i{n}\n" for n in range(9)))
    if words[0] == "serve" and "--address" not in words:
        words = [*words, "--address", "127.0.0.1:0"]
    assert main(words) == 2
    found = capsys.readouterr().err
    assert found.count("\n") == 1
    assert line in found
