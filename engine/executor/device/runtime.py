"""What the executor needs of a device: CUDA's streams, events, graphs and pinned memory behind a small
protocol, so that the logic above it is tested without hardware (:mod:`engine.executor.device.fake`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch


class Event(Protocol):
    """A point in the device's work."""

    def synchronize(self) -> None:
        """Wait until the device has come to it."""
        ...

    def query(self) -> bool:
        """Whether the device has come to it."""
        ...


class Timer(Protocol):
    """A stretch of the device's work, by the device's clock."""

    def stop(self) -> None:
        """Behind all work queued so far."""
        ...

    def read_ns(self) -> int:
        """Its length. Never waits: an event recorded after :meth:`stop` has come."""
        ...


class Graph(Protocol):
    """Captured work: a replay runs the same kernels on the same addresses, and no Python."""

    @property
    def output(self) -> torch.Tensor:
        """What the captured function returned; overwritten by every replay, and by replays of other graphs
        (they share memory), so it is read before the next one."""
        ...

    def replay(self) -> None: ...


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of device memory."""

    total: int
    free: int
    """As the driver sees it."""
    reserved: int
    """Held by torch's allocator, in use or not."""
    peak: int
    """Most that tensors took at one time since the last :meth:`DeviceRuntime.reset_peak`."""


class DeviceRuntime(Protocol):
    """One device and one queue of work on it. Nothing waits for the device but what says so."""

    device: torch.device

    def bind_thread(self) -> None:
        """Make the calling thread use the device; before anything else on that thread."""
        ...

    def pinned(self, num_bytes: int) -> torch.Tensor:
        """Host memory, uint8 [num_bytes], that the device copies from and to without the host's help."""
        ...

    def device_bytes(self, num_bytes: int) -> torch.Tensor:
        """Device memory, uint8 [num_bytes], zeroed."""
        ...

    def upload(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy from pinned to device memory. ``source`` must stay as it is until an event that was
        recorded later has come."""
        ...

    def download(self, to: torch.Tensor, source: torch.Tensor) -> None:
        """Queue a copy from device to pinned memory. ``to`` holds it once a later event has come."""
        ...

    def send_now(self, values: Sequence[int]) -> torch.Tensor:
        """int64 values on the device. May wait: not for what every step needs."""
        ...

    def waitable(self, tensor: torch.Tensor) -> torch.Tensor:
        """``tensor``, for code that waits for the device and is known to."""
        ...

    def record_event(self) -> Event:
        """An event behind all work queued so far."""
        ...

    def start_timer(self) -> Timer:
        """From behind all work queued so far."""
        ...

    def capture(self, work: Callable[[], torch.Tensor]) -> Graph:
        """Capture what ``work`` queues. It has run before with the same shapes, waits for nothing, and
        reads no tensor that is not still there at a replay.
        """
        ...

    def memory(self) -> DeviceMemory:
        """Bytes now; waits for the device."""
        ...

    def reset_peak(self) -> None:
        """Begin a new measurement of ``DeviceMemory.peak``, with what was cached given back."""
        ...

    def annotate(self, name: str) -> AbstractContextManager[object]:
        """A named range for profilers (NVTX and ``record_function``); nothing when ranges are off."""
        ...
