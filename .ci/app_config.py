"""Print what [tool.flwr.app.config] must hold; with --write, put it into pyproject.toml."""

import re
import sys
from pathlib import Path

from fedrecgel.deploy.bundle import app_config as table

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
TABLE = re.compile(r"(?<=^\[tool\.flwr\.app\.config\]\n).*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)


def written() -> str:
    """What stands there now."""
    found = TABLE.search(PYPROJECT.read_text(encoding="utf-8"))
    assert found is not None
    return found.group().rstrip("\n") + "\n"


if __name__ == "__main__":
    print(table(), end="")
    if "--write" in sys.argv:
        text = PYPROJECT.read_text(encoding="utf-8")
        PYPROJECT.write_text(TABLE.sub(lambda _: table() + "\n", text), encoding="utf-8")
