"""The processor that numbers were computed on: kinds differ in how they round."""

import platform
from pathlib import Path


def processor() -> str:
    """Its model name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"
