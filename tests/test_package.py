"""The package as others get it: metadata, folders, the Flower bundle."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import fedrecgel

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = {path.relative_to(ROOT).as_posix() for path in ROOT.glob("fedrecgel/**/*.py")}


def requirements(listed: list[str]) -> dict[str, str]:
    """Map a requirement's name to the rest of it."""
    pattern = re.compile(r"([A-Za-z0-9_-]+)(.*)")
    return dict(match.groups() for line in listed if (match := pattern.match(line)))


def test_version_is_one_number_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert fedrecgel.__version__ == version
    assert importlib.metadata.version("fedrecgel") == version
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_installed_package_is_typed_and_licensed() -> None:
    assert (Path(fedrecgel.__file__).parent / "py.typed").is_file()
    assert importlib.metadata.metadata("fedrecgel")["License-Expression"] == "Apache-2.0"


def test_every_direct_dependency_has_an_exact_development_version() -> None:
    pinned = requirements((ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    named = PROJECT["project"]["dependencies"] + PROJECT["project"]["optional-dependencies"]["dev"]
    assert requirements(named).keys() <= pinned.keys()
    assert all(version.startswith("==") for version in pinned.values())


def test_simulation_extra_asks_for_the_same_flower() -> None:
    core = requirements(PROJECT["project"]["dependencies"])["flwr"]
    assert PROJECT["project"]["optional-dependencies"]["simulation"] == [f"flwr[simulation]{core}"]


@pytest.mark.parametrize("name", ["client", "common", "server", "simulation"])
def test_top_level_folder_is_a_link_into_the_package(name: str) -> None:
    assert os.readlink(ROOT / name) == f"fedrecgel/{name}"
    assert (ROOT / name / "__init__.py").is_file()


def test_every_folder_with_code_is_a_package() -> None:
    folders = {(ROOT / source).parent for source in SOURCES}
    assert [folder for folder in folders if not (folder / "__init__.py").is_file()] == []


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the Flower bundle from a copy of the tree and return the folder it unpacks to."""
    app = tmp_path_factory.mktemp("app")
    for name in PROJECT["tool"]["flwr"]["app"]["fab-include"] + ["pyproject.toml"]:
        if "*" not in name:
            shutil.copy(ROOT / name, app)
    # Others may just be writing into __pycache__.
    sources = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "fedrecgel", app / "fedrecgel", ignore=sources)
    command = "from flwr.cli.app import app; app()"
    subprocess.run(
        [sys.executable, "-c", command, "build"],
        cwd=app,
        env={**os.environ, "FLWR_HOME": str(app / "home")},
        check=True,
        capture_output=True,
        text=True,
    )
    (built,) = app.glob("*.fab")
    assert built.stat().st_size < 2_000_000  # Flower takes ten million
    unpacked = tmp_path_factory.mktemp("bundle")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(unpacked)
    return unpacked


@pytest.mark.flower
def test_flower_bundle_holds_every_module_and_no_test(bundle: Path) -> None:
    """U019: Flower leaves some names out without a word."""
    assert {p.relative_to(bundle).as_posix() for p in bundle.rglob("*.py")} == SOURCES


@pytest.mark.flower
def test_flower_bundle_loads_where_only_it_is_on_the_path(bundle: Path, tmp_path: Path) -> None:
    """U019."""
    components = PROJECT["tool"]["flwr"]["app"]["components"]
    lines = ["import fedrecgel", "print(fedrecgel.__file__)"]
    for reference in components.values():
        module, attribute = reference.split(":")
        lines.append(f"import {module}; {module}.{attribute}")
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(bundle)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(done.stdout.strip()) == bundle / "fedrecgel" / "__init__.py"
