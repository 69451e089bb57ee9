"""Import every module of the installed package and count them against the source tree.

Usage: python installed.py PATH/TO/SOURCE/fedrecgel, from outside the tree.
"""

import importlib
import pkgutil
import sys
from pathlib import Path

import fedrecgel


def main(source: Path) -> int:
    """Return 0 if the installed package is whole and alone."""
    installed = Path(fedrecgel.__file__).resolve().parent
    if installed == source.resolve():
        print("error: the source tree was imported, not the installed package", file=sys.stderr)
        return 1
    names = [module.name for module in pkgutil.walk_packages([str(installed)], "fedrecgel.")]
    for name in names:
        if not name.endswith("__main__"):  # importing that runs the command line
            importlib.import_module(name)
    expected = len(list(source.rglob("*.py")))
    found = len(names) + 1  # the package itself
    print(f"{found} modules installed and imported, {expected} source files ({installed})")
    beside = {path.name for path in installed.parent.iterdir()}
    leaked = beside & {"client", "common", "server", "simulation", "tests", "benchmarks", "docs"}
    if leaked:
        print(f"error: installed beside the package: {', '.join(sorted(leaked))}", file=sys.stderr)
    return int(found != expected or bool(leaked) or not (installed / "py.typed").is_file())


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
