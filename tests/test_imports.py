"""Who may import whom, and what the package exports: read from the source with ast."""

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedrecgel

PACKAGE = Path(fedrecgel.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# A part of the package -> the parts that it may import, besides itself.
ALLOWED = {
    "common": set(),
    "client": {"common"},
    "server": {"common"},
    "serve": {"common", "client"},
    "simulation": {"common", "client", "server"},
}
# The only modules that know Flower.
KNOW_FLOWER = {
    "app.py",
    "client/app.py",
    "client/stock.py",
    "common/array_codec.py",
    "common/greeting.py",
    "common/records.py",
    "deploy/warm.py",
    "server/app.py",
    "server/evaluation.py",
    "server/exchange.py",
    "server/history.py",
    "server/gathering.py",
    "server/presence.py",
    "server/strategy.py",
    "server/training.py",
    "simulation/backends.py",
    "simulation/grid.py",
    "simulation/ray.py",
}


def imports(path: Path) -> Iterator[str]:
    """Yield every absolute dotted name that the file imports, ``from a import b`` as ``a.b``."""
    package = path.relative_to(PACKAGE.parent).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def label(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_dependencies_point_one_way(path: Path) -> None:
    part = path.relative_to(PACKAGE).parts[0]
    if part not in ALLOWED:
        return  # the root and the command line may import everything
    used = {name.split(".")[1] for name in imports(path) if name.startswith("fedrecgel.")}
    # The version stands in the root, which a Flower bundle can read without being installed.
    assert used - {part, "__version__"} <= ALLOWED[part]


@pytest.mark.parametrize("path", MODULES, ids=label)
def test_only_a_few_modules_know_flower(path: Path) -> None:
    if any(name.split(".")[0] == "flwr" for name in imports(path)):
        assert label(path) in KNOW_FLOWER


def all_modules() -> list[str]:
    found = pkgutil.walk_packages(fedrecgel.__path__, "fedrecgel.")
    return ["fedrecgel", *sorted(module.name for module in found)]


def test_every_source_file_is_an_importable_module() -> None:
    assert len(all_modules()) == len(MODULES)


@pytest.mark.parametrize("name", [n for n in all_modules() if not n.endswith("__main__")])
def test_exported_names_exist(name: str) -> None:
    module = importlib.import_module(name)
    exported = getattr(module, "__all__", [])
    assert len(set(exported)) == len(exported)
    assert [export for export in exported if not hasattr(module, export)] == []


def test_the_package_exports_what_it_lists() -> None:
    # Public names are loaded late, so each is asked for, and `dir` must know them all.
    assert dir(fedrecgel) == sorted(fedrecgel.__all__)
    for name in fedrecgel.__all__:
        assert getattr(fedrecgel, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedrecgel.nothing
