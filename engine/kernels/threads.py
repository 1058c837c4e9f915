"""How many threads to compute with."""

from __future__ import annotations

import os

import psutil


def usable_physical_cores() -> int:
    """Physical cores, but no more than the CPUs that this process may run on."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed))
