"""The Flower app as a folder that ``flwr run`` takes, made from the installed package.

The project's checkout is such a folder as well; who installed a wheel has none.
"""

import importlib.metadata
import json
import shutil
from dataclasses import fields
from pathlib import Path

import fedrecgel
from fedrecgel.common.algorithms.registry import ALGORITHMS, algorithm_class
from fedrecgel.common.config import kebab, setting_help
from fedrecgel.server.app import HELP, RunOptions

_WIDTH = 100

_PYPROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "fedrecgel"
version = "{version}"
description = "Federated recommendation on Flower"
license = "Apache-2.0"
requires-python = ">=3.11"
dependencies = {dependencies}

[tool.flwr.app]
publisher = "fedrecgel"
fab-include = ["fedrecgel/**/*.py"]

[tool.flwr.app.components]
serverapp = "fedrecgel.app:app"
clientapp = "fedrecgel.client.app:app"

[tool.flwr.app.config]
{config}"""


def write_app(folder: Path) -> Path:
    """Make the app's folder, in place of one that is there; returns it."""
    shutil.rmtree(folder, ignore_errors=True)
    package = Path(fedrecgel.__file__).parent
    shutil.copytree(
        package, folder / "fedrecgel", ignore=shutil.ignore_patterns("__pycache__", "*.pyc")
    )
    needed = [r for r in importlib.metadata.requires("fedrecgel") or [] if "extra ==" not in r]
    text = _PYPROJECT.format(
        version=fedrecgel.__version__, dependencies=json.dumps(needed), config=app_config()
    )
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


def app_config() -> str:
    """The table ``[tool.flwr.app.config]``: Flower takes only names that stand in it.

    Every name has an empty value, which means not given; default and help are a comment.
    """
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
    return (line if len(line) <= _WIDTH else line[: _WIDTH - 4].rsplit(" ", 1)[0] + " ...") + "\n"
