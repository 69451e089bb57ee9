"""The machine: what it is, how fast it multiplies, how much memory this process has."""

import os
import platform
import resource
import time
from pathlib import Path

import flwr
import numpy as np
import torch

from fedrecgel.common.processor import processor

GIB = 2**30


def describe() -> dict[str, str | int | float]:
    """Processor, memory and versions."""
    return {
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB, 1),
        "load": round(os.getloadavg()[0], 2),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "flwr": str(getattr(flwr, "__version__", "unknown")),
    }


def gemm_rate(repeats: int = 8, size: int = 1024) -> float:
    """Operations a second of a large square float32 matrix product, best of ``repeats``."""
    left, right = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(repeats + 1):
        began = time.thread_time()
        torch.mm(left, right)
        best = min(best, time.thread_time() - began)
    return 2 * size**3 / best


def resident() -> int:
    """Bytes of memory that this process holds now."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:  # not Linux: the peak is the best there is
        return peak()
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Most bytes of memory that this process ever held."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if platform.system() == "Darwin" else most * 1024
    # Linux hands a parent's ru_maxrss on to its children; this one is the process's own.
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
