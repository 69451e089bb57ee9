"""Print what pip shall install into the image: the package's dependencies at the pinned versions.

Usage: requirements.py PYPROJECT CONSTRAINTS FLWR; FLWR takes the place of the pinned Flower, and
what goes with Flower has no pin then. Torch is left out: the image gets it from another index.
"""

import re
import sys
import tomllib
from pathlib import Path

GOES_WITH_FLOWER = {"cryptography"}


def requirements(pyproject: str, constraints: str, flwr: str) -> list[str]:
    """Lines for ``pip install -r``, sorted by name."""
    project = tomllib.loads(pyproject)["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    names = {re.split(r"[^A-Za-z0-9_-]", line)[0] for line in wanted}
    pins = (
        line.split("==") for line in constraints.splitlines() if re.match(r"[A-Za-z].*==", line)
    )
    versions = {name: f"=={pin}" for name, pin in pins if name not in GOES_WITH_FLOWER}
    versions["flwr"] = f"=={flwr}"
    return [f"{name}{versions.get(name, '')}" for name in sorted(names - {"torch"})]


if __name__ == "__main__":
    texts = [Path(path).read_text(encoding="utf-8") for path in sys.argv[1:3]]
    print("\n".join(requirements(texts[0], texts[1], sys.argv[3])))
