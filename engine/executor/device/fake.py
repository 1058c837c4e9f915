"""A device that isn't there: the CPU, made to be as unforgiving as a GPU. For tests and dry runs.

- A graph's replay runs what was recorded, on the tensors that were recorded: whatever the captured function
  would read anew from Python is as it was at capture. Intermediates of all graphs are poisoned before a
  replay, because graphs share their memory.
- A copy to the host shows poison until an event recorded after it was waited for; a pinned block that is
  written before its copy was waited for is an error.
- A tensor of the device refuses what would make a host wait (``item``, ``tolist``, ``bool`` …) and what would
  copy a host tensor on the quiet.
"""

# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map_only

from engine.executor.device.runtime import DeviceMemory

POISON = 0x7B
"""Byte of integers that are worth nothing: far outside any range. Floats are NaN."""
_HOST_READS = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__")
_INDEXING = ("__getitem__", "__setitem__", "index_select", "index_copy_", "index_put_")
_ALLOCATIONS = ("aten::empty", "aten::new_empty", "aten::empty_like", "aten::empty_strided")
_SYNCHRONISING = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal")


class HiddenWaitError(RuntimeError):
    """The host would have waited for the device, or the device for the host, without saying so."""


class FakeDeviceTensor(torch.Tensor):
    """A tensor "on the device"."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _HOST_READS:
            raise HiddenWaitError(f"{name}() on a tensor of the device")
        if name in _INDEXING and any(_is_host_index(value) for value in tree_flatten(args[1:])[0]):
            raise HiddenWaitError(f"{name}: the index lies on the host")
        return super().__torch_function__(func, types, args, kwargs or {})


def _is_host_index(value: object) -> bool:
    return type(value) is torch.Tensor and not value.dtype.is_floating_point


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` as one of the fake device, the same memory."""
    return tensor.as_subclass(FakeDeviceTensor)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` of the fake device as a plain one, the same memory: for tests that look at it."""
    return tensor.as_subclass(torch.Tensor)


@dataclass(slots=True)
class _Copy:
    to: torch.Tensor | None
    """Pinned memory that gets ``snapshot`` when the copy comes; None: a copy to the device, done already."""
    source: torch.Tensor
    snapshot: torch.Tensor

    def arrive(self) -> None:
        if self.to is not None:
            self.to.copy_(self.snapshot)
        elif not torch.equal(self.source, self.snapshot):
            raise HiddenWaitError("pinned memory was written before its copy to the device had come")


class _FakeEvent:
    """Behind the first ``position`` copies of ``queue``; comes the second time that it is asked for."""

    def __init__(self, queue: _CopyQueue) -> None:
        self._queue = queue
        self._position = queue.num_queued
        self._asked = False

    def query(self) -> bool:
        if not self._asked:
            self._asked = True
            return False
        self.synchronize()
        return True

    def synchronize(self) -> None:
        self._queue.arrive_until(self._position)


class _FakeTimer:
    """Takes a fixed time, and is an error when it is read before its end has come."""

    def __init__(self, queue: _CopyQueue, takes_ns: int) -> None:
        self._queue = queue
        self._takes_ns = takes_ns
        self._end: int | None = None

    def stop(self) -> None:
        self._end = self._queue.num_queued

    def read_ns(self) -> int:
        if self._end is None or self._queue.num_arrived < self._end:
            raise HiddenWaitError("a timer was read before the device had come to its end")
        return self._takes_ns


class _CopyQueue:
    def __init__(self) -> None:
        self.num_queued = 0
        self._waiting: deque[_Copy] = deque()

    @property
    def num_arrived(self) -> int:
        return self.num_queued - len(self._waiting)

    def add(self, copy: _Copy) -> None:
        self._waiting.append(copy)
        self.num_queued += 1

    def arrive_until(self, position: int) -> None:
        while self._waiting and self.num_arrived < position:
            self._waiting.popleft().arrive()


@dataclass(slots=True)
class _Recorded:
    """One operation; ``outputs`` are the tensors at the addresses that later operations read."""

    run: Callable[[], Any]
    outputs: list[torch.Tensor]
    allocates: bool


@dataclass
class FakeGraph:
    """See :class:`engine.executor.device.runtime.Graph`."""

    runtime: FakeRuntime
    output: torch.Tensor
    operations: list[_Recorded]
    inputs: set[int] = field(default_factory=set)
    """Addresses of memory that the graph reads and did not make: what must be static."""
    replays: int = 0

    def replay(self) -> None:
        self.replays += 1
        for graph in self.runtime.graphs:
            graph.poison()
        with torch._C.DisableTorchFunctionSubclass():
            for operation in self.operations:
                if operation.allocates:
                    continue
                results = tree_flatten(operation.run())[0]
                for kept, new in zip(operation.outputs, results, strict=False):
                    if isinstance(new, torch.Tensor) and new.data_ptr() != kept.data_ptr():
                        kept.copy_(new)

    def poison(self) -> None:
        """What this graph made is worth nothing any more."""
        with torch._C.DisableTorchFunctionSubclass():
            for operation in self.operations:
                for tensor in operation.outputs:
                    _poison(tensor)


def _poison(tensor: torch.Tensor) -> None:
    storage = tensor.untyped_storage()
    if tensor.dtype.is_floating_point:
        size = storage.nbytes() // tensor.element_size()
        torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (size,), (1,)).fill_(float("nan"))
    else:
        torch.empty(0, dtype=torch.uint8).set_(storage).fill_(POISON)


class FakeRuntime:
    """A :class:`engine.executor.device.runtime.DeviceRuntime` on the CPU.

    Args:
        total_bytes: of the device.
        used_bytes: taken by others.
        forward_bytes: what :meth:`memory` reports as the peak.
    """

    def __init__(
        self, total_bytes: int = 1 << 30, used_bytes: int = 1 << 28, forward_bytes: int = 1 << 20
    ) -> None:
        self.device = torch.device("cpu")
        self.graphs: list[FakeGraph] = []
        self.num_uploads = 0
        self.num_downloads = 0
        self.ranges: list[str] = []
        self.forward_ns = 3_000_000
        """What every timer reads."""
        self._reading = DeviceMemory(total_bytes, total_bytes - used_bytes, forward_bytes, forward_bytes)
        self._queue = _CopyQueue()

    def bind_thread(self) -> None: ...

    def pinned(self, num_bytes: int) -> torch.Tensor:
        return torch.zeros(num_bytes, dtype=torch.uint8)

    def device_bytes(self, num_bytes: int) -> torch.Tensor:
        return to_device(torch.zeros(num_bytes, dtype=torch.uint8))

    def upload(self, to: torch.Tensor, source: torch.Tensor) -> None:
        self.num_uploads += 1
        to_host(to).copy_(source)
        self._queue.add(_Copy(None, source, source.clone()))

    def download(self, to: torch.Tensor, source: torch.Tensor) -> None:
        self.num_downloads += 1
        snapshot = to_host(source).clone()
        to.view(torch.uint8).fill_(POISON)
        self._queue.add(_Copy(to, snapshot, snapshot))

    def record_event(self) -> _FakeEvent:
        return _FakeEvent(self._queue)

    def start_timer(self) -> _FakeTimer:
        return _FakeTimer(self._queue, self.forward_ns)

    def send_now(self, values: Sequence[int]) -> torch.Tensor:
        return to_device(torch.tensor(values, dtype=torch.int64))

    def waitable(self, tensor: torch.Tensor) -> torch.Tensor:
        return to_host(tensor)

    def capture(self, work: Callable[[], torch.Tensor]) -> FakeGraph:
        with _Tape() as tape:
            output = work()
        graph = FakeGraph(self, output, tape.operations, tape.inputs)
        graph.poison()  # a capture runs nothing
        self.graphs.append(graph)
        return graph

    def memory(self) -> DeviceMemory:
        return self._reading

    def reset_peak(self) -> None: ...

    def annotate(self, name: str) -> AbstractContextManager[object]:
        self.ranges.append(name)
        return nullcontext()


class _Tape(TorchDispatchMode):
    """Records every operation of torch, and every launch of a Triton kernel in its interpreter."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[_Recorded] = []
        self.inputs: set[int] = set()
        self._made: set[int] = set()

    def __enter__(self) -> _Tape:
        self._patch = _launches(self._launch)
        self._patch.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patch.__exit__(*error)

    def _launch(self, run: Callable[[], None], arguments: Any) -> None:
        def alone() -> None:
            with _disable_current_modes():
                run()

        self.reads(arguments)
        alone()
        self.operations.append(_Recorded(alone, [], False))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name in _SYNCHRONISING or (name == "aten::index" and _is_mask(args[1])):
            raise HiddenWaitError(f"{name} in a graph")
        self.reads((args, kwargs))
        result = func(*args, **kwargs)
        inputs = {tensor.untyped_storage().data_ptr() for tensor in _tensors((args, kwargs))}
        outputs = [tensor for tensor in _tensors(result) if tensor.untyped_storage().data_ptr() not in inputs]
        self._made |= {tensor.untyped_storage().data_ptr() for tensor in outputs}
        self.operations.append(_Recorded(lambda: func(*args, **kwargs), outputs, name in _ALLOCATIONS))
        return result

    def reads(self, values: Any) -> None:
        """Note the memory that an operation is given and that no earlier one made."""
        self.inputs |= {tensor.untyped_storage().data_ptr() for tensor in _tensors(values)} - self._made


def _is_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype == torch.bool for index in indices)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in tree_flatten(values)[0] if isinstance(value, torch.Tensor)]


@contextmanager
def _launches(through: Callable[[Callable[[], None], Any], None]) -> Iterator[None]:
    """While it lasts, kernels in Triton's interpreter take tensors of the fake device, and every launch goes
    through ``through(run, arguments)``.
    """
    try:
        from triton.runtime.interpreter import GridExecutor
    except ImportError:  # no Triton here: no kernel to launch
        yield
        return
    original = GridExecutor.__call__

    def launch(executor: Any, *args: Any, **kwargs: Any) -> None:
        args, kwargs = tree_map_only(FakeDeviceTensor, to_host, (args, kwargs))
        through(lambda: original(executor, *args, **kwargs), (args, kwargs))

    GridExecutor.__call__ = launch
    try:
        yield
    finally:
        GridExecutor.__call__ = original


def plain_launches() -> AbstractContextManager[None]:
    """While it lasts, kernels in Triton's interpreter take tensors of the fake device."""
    return _launches(lambda run, _arguments: run())
