"""Print what [tool.flwr.app.config] must hold; with --write, put it into pyproject.toml."""

import re
import sys
from dataclasses import fields
from pathlib import Path

from fedrecgel.common.algorithms.registry import ALGORITHMS, algorithm_class
from fedrecgel.common.config import kebab, setting_help
from fedrecgel.server.app import HELP, RunOptions

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
TABLE = re.compile(r"(?<=^\[tool\.flwr\.app\.config\]\n).*?(?=^\[|\Z)", re.MULTILINE | re.DOTALL)
WIDTH = 100


def table() -> str:
    """Every name with an empty value, and its default and help as a comment."""
    rows = {
        kebab(field.name): f"{_default(field.default)}; {HELP[kebab(field.name)]}"
        for field in fields(RunOptions)
    }
    for name in ALGORITHMS:
        for setting, default, text in setting_help(algorithm_class(name).config_class):
            rows.setdefault(setting, f"{default}; {text}")
    return "".join(_line(name, text) for name, text in rows.items())


def _default(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


def _line(name: str, text: str) -> str:
    line = f'{name} = ""  # {text}'
    return (line if len(line) <= WIDTH else line[: WIDTH - 4].rsplit(" ", 1)[0] + " ...") + "\n"


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
