"""Where kernels run, and what follows: interpreter or device, fp8 conversions, precision of products."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import triton

FP8_NONE, FP8_NATIVE, FP8_SOFTWARE = 0, 1, 2
"""How a kernel reads and writes an fp8 cache: it holds none · by the device's conversion instruction (sm_89
and later) · by integer arithmetic (sm_80, and the interpreter, whose own conversions truncate)."""

INTERPRETER_ARCH = 0


def interpreted() -> bool:
    """True when kernels run in Triton's interpreter on the CPU (``TRITON_INTERPRET=1``)."""
    return bool(triton.knobs.runtime.interpret)


@dataclass(frozen=True, slots=True)
class Platform:
    """A device as kernels see it.

    ``arch``: compute capability as two or three digits (80, 90, 100); 0 is the interpreter.
    """

    arch: int
    num_sms: int

    @property
    def fp8(self) -> int:
        """Conversion that an fp8 cache needs here."""
        return FP8_NATIVE if self.arch >= 89 else FP8_SOFTWARE

    @property
    def wide_dot(self) -> bool:
        """Products are taken in float32 whatever the operands are: the interpreter multiplies bfloat16 as if
        its bits were integers."""
        return self.arch == INTERPRETER_ARCH


INTERPRETER = Platform(INTERPRETER_ARCH, 1)


@functools.cache
def _device_platform(device: int) -> Platform:
    driver = triton.runtime.driver.active
    properties = driver.utils.get_device_properties(device)
    return Platform(int(driver.get_current_target().arch), properties["multiprocessor_count"])


def current_platform() -> Platform:
    """The platform of Triton's current device, which is where the next kernel is launched."""
    if interpreted():
        return INTERPRETER
    return _device_platform(triton.runtime.driver.active.get_current_device())
