"""The Python client of docs/how-to/serve.md runs as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedrecgel import Result
from fedrecgel.cli.serve import RunPlace
from fedrecgel.serve.current import Current
from fedrecgel.serve.server import Server

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "serve.md"


@pytest.mark.skipif(sys.platform == "win32", reason="no unix sockets")
def test_the_example_prints_a_list(served_run: Result, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    current = Current(RunPlace(served_run.path), lambda text: None)
    current.refresh()
    server = Server(current, f"unix:{tmp_path}/socket")
    server.start()
    try:
        code = code.replace("127.0.0.1:50051", server.address)
        done = subprocess.run(
            [sys.executable, "-c", code.replace("timeout=1.0", "timeout=60")],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        server.stop(0)
    first, *items = done.stdout.splitlines()
    assert first == f"SOURCE_POPULARITY round {served_run.round}"
    assert len(items) == 5
