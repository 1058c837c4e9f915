"""The real device: torch.cuda."""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from engine.executor.device.runtime import DeviceMemory


class _CapturedGraph:
    def __init__(self, graph: torch.cuda.CUDAGraph, output: torch.Tensor) -> None:
        self._graph = graph
        self.output = output

    def replay(self) -> None:
        self._graph.replay()


class _CudaTimer:
    def __init__(self) -> None:
        self._begin = torch.cuda.Event(enable_timing=True)
        self._end = torch.cuda.Event(enable_timing=True)
        self._begin.record()

    def stop(self) -> None:
        self._end.record()

    def read_ns(self) -> int:
        return round(float(self._begin.elapsed_time(self._end)) * 1e6)


class CudaRuntime:
    """A :class:`engine.executor.device.runtime.DeviceRuntime` on the current stream of ``device``.

    Args:
        ranges: mark phases of a step for Nsight Systems (NVTX) and torch.profiler (``record_function``).
    """

    def __init__(self, device: torch.device, ranges: bool = False) -> None:
        self.device = device
        self._ranges = ranges
        self._pool: Any = None
        self.bind_thread()

    def bind_thread(self) -> None:
        torch.cuda.set_device(self.device)

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8, pin_memory=True)

    def device_bytes(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8, device=self.device)

    def upload(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source, non_blocking=True)

    def download(self, to: torch.Tensor, source: torch.Tensor) -> None:
        to.copy_(source, non_blocking=True)

    def send_now(self, values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def waitable(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def record_event(self) -> torch.cuda.Event:
        event = torch.cuda.Event()
        event.record()
        return event

    def start_timer(self) -> _CudaTimer:
        return _CudaTimer()

    def capture(self, work: Callable[[], torch.Tensor]) -> _CapturedGraph:
        torch.cuda.synchronize(self.device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            output = work()
        if self._pool is None:
            self._pool = graph.pool()  # the largest graph comes first; the others fit into its memory
        return _CapturedGraph(graph, output)

    def memory(self) -> DeviceMemory:
        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        return DeviceMemory(
            total,
            free,
            torch.cuda.memory_reserved(self.device),
            torch.cuda.max_memory_allocated(self.device),
        )

    def reset_peak(self) -> None:
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def annotate(self, name: str) -> AbstractContextManager[object]:
        return _ranges(name) if self._ranges else nullcontext()


@contextmanager
def _ranges(name: str) -> Iterator[None]:
    with torch.profiler.record_function(name):
        torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            torch.cuda.nvtx.range_pop()
