"""Interpreter or device: decided before anything imports triton, which reads the choice as it is imported."""

from __future__ import annotations

import os
from pathlib import Path


def choose_triton_mode() -> str:
    """Without an NVIDIA driver, run Triton kernels in Triton's interpreter. Returns the device of their
    tensors.
    """
    if not Path("/proc/driver/nvidia/version").exists():
        os.environ.setdefault("TRITON_INTERPRET", "1")
    return "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
