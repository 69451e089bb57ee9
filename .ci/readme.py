"""Run the code blocks of a Markdown file that are marked ``run``, as a reader would paste them.

A block is marked by the word after its language: "```bash run" or "```python run". They run in one
temporary folder, in order, with this interpreter's ``fedrecgel`` first on the path.

Usage: python readme.py README.md
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BLOCK = re.compile(r"^```(bash|python) run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def main(document: Path) -> int:
    """Return the exit code of the first block that fails, else 0; no marked block is a failure."""
    blocks = BLOCK.findall(document.read_text(encoding="utf-8"))
    if not blocks:
        print(f"error: {document} has no block marked run", file=sys.stderr)
        return 1
    scripts = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}"}
    interpreters = {"bash": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}
    with tempfile.TemporaryDirectory() as folder:
        for language, code in blocks:
            print(f"--- {language}\n{code}---", flush=True)
            start = time.monotonic()
            command = [*interpreters[language], code]
            done = subprocess.run(command, cwd=folder, env=environment, check=False)
            print(f"--- {time.monotonic() - start:.0f} s", flush=True)
            if done.returncode:
                print(f"error: a block of {document} failed", file=sys.stderr)
                return done.returncode
    print(f"{len(blocks)} blocks of {document} ran")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
