"""A device that isn't there: Triton compiles for it, and its "launches" only note what was compiled.

Set active, the driver makes the launch functions compile exactly what they would launch: same specialisation,
same configuration, same limit of shared memory.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase

ARCHES = (80, 90, 100)
_MAX_SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}
_NUM_SMS = {80: 108, 90: 132, 100: 148}
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")


@dataclass(frozen=True, slots=True)
class Compiled:
    """What one compiled kernel takes. ``spill_bytes``: local memory a thread, for what did not fit."""

    kernel: str
    registers: int
    spill_bytes: int
    shared_bytes: int
    num_warps: int
    num_stages: int


def read_cubin(cubin: bytes) -> tuple[int, int]:
    """(registers, bytes of stack and local memory) a thread, by the cuobjdump that Triton ships.

    Raises:
        RuntimeError: its output has no resource line.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        tool = triton.knobs.nvidia.cuobjdump.path
        listing = subprocess.run(
            [tool, "--dump-resource-usage", str(path)], capture_output=True, text=True, check=True, timeout=60
        ).stdout
    found = _USAGE.search(listing)
    if found is None:
        raise RuntimeError(f"cuobjdump tells no resource usage: {listing[:200]!r}")
    registers, stack, local = (int(value) for value in found.groups())
    return registers, stack + local


class _Utils:
    """What Triton asks of a device's driver."""

    def __init__(self, arch: int) -> None:
        self._arch = arch
        self.loaded: tuple[int, int] = (0, 0)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": _MAX_SHARED[self._arch], "multiprocessor_count": _NUM_SMS[self._arch]}

    def load_binary(
        self, name: str, cubin: bytes, shared: int, device: int
    ) -> tuple[object, object, int, int, int]:
        registers, spilled = self.loaded = read_cubin(cubin)
        return object(), object(), registers, spilled, 1024


class AotDriver(DriverBase):  # type: ignore[misc]  # triton has no types
    """Compute capability ``arch``; ``compiled`` grows with every kernel that a launch function compiles."""

    def __init__(self, arch: int) -> None:
        super().__init__()
        self.arch = arch
        self.utils = _Utils(arch)
        self.compiled: list[Compiled] = []

    @classmethod
    def is_active(cls) -> bool:
        return False

    def map_python_to_cpp_type(self, ty: str) -> str:
        raise NotImplementedError("nothing is launched")

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        # Kernels are cached by device: one number an architecture keeps them apart.
        return self.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., Any]:
        raise NotImplementedError("nothing is timed")

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        found: list[Compiled] = []

        def launch(*_: object) -> None:
            if not found:  # the first launch comes right behind the load
                found.append(self._loaded(metadata))
            # A kernel that an earlier driver compiled is launched by this closure still.
            active = triton.runtime.driver.active
            active.compiled.append(found[0])

        return launch

    def _loaded(self, metadata: Any) -> Compiled:
        registers, spilled = self.utils.loaded
        return Compiled(
            metadata.name, registers, spilled, metadata.shared, metadata.num_warps, metadata.num_stages
        )
