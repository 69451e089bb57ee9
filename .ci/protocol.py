"""Code of the recommender service from its ``.proto``: written, or compared with what is there.

``--write`` writes it. Run it from the repository, with the pinned ``grpcio-tools``.
"""

import sys
import tempfile
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PROTO = "fedrecgel/serve/recommender.proto"
GENERATED = ("recommender_pb2.py", "recommender_pb2.pyi", "recommender_pb2_grpc.py")


def generate(out: Path) -> None:
    """Run the compiler."""
    includes = files("grpc_tools") / "_proto"
    words = ["protoc", f"-I{ROOT}", f"-I{includes}"]
    words += [f"--{kind}_out={out}" for kind in ("python", "pyi", "grpc_python")]
    if protoc.main([*words, PROTO]) != 0:
        raise SystemExit(f"error: {PROTO} cannot be compiled")


def main() -> int:
    """Return 0 when the code is what the compiler makes of the file."""
    if sys.argv[1:] == ["--write"]:
        generate(ROOT)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        stale = [
            name
            for name in GENERATED
            if (Path(folder, PROTO).parent / name).read_bytes()
            != (ROOT / PROTO).with_name(name).read_bytes()
        ]
    if stale:
        print(f"error: {', '.join(stale)} is not what {PROTO} says; run .ci/protocol.py --write")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
