"""Decode steps as CUDA graphs: one a padded batch size, as vLLM's ``cudagraph_capture_sizes``."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence

import numpy as np
import torch

from engine.executor.device.batch import DeviceTables, PackedStep
from engine.executor.device.inputs import device_forward_batch, forward_fields, write_forward
from engine.executor.device.runtime import DeviceRuntime, Graph
from engine.executor.device.staging import Layout, Staging
from engine.models.backend import ForwardBatch

WARM_UPS = 2
"""Runs before a capture: the first compiles kernels, the second finds the allocator as the capture will."""
LARGEST_DEFAULT = 512

Forward = Callable[[ForwardBatch], torch.Tensor]


def default_capture_sizes(max_num_seqs: int) -> list[int]:
    """1, 2, 4, then every 8th up to 256 and every 16th up to 512, and ``max_num_seqs`` itself if it is no
    larger: vLLM's list.
    """
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, LARGEST_DEFAULT + 1, 16)]
    kept = [size for size in sizes if size <= max_num_seqs]
    return sorted({*kept, min(max_num_seqs, LARGEST_DEFAULT)})


class DecodeGraphs:
    """Graphs of steps in which every request has one token.

    A graph reads its inputs at fixed places of the staging block, and the batch's tables; it writes logits
    [size, V] at a fixed place.

    Args:
        sizes: padded batch sizes.
        forward: the backend's, or a compiled form of it.
    """

    def __init__(
        self,
        runtime: DeviceRuntime,
        staging: Staging,
        tables: DeviceTables,
        forward: Forward,
        sizes: Sequence[int],
        max_model_len: int,
        block_size: int,
    ) -> None:
        self._runtime = runtime
        self._staging = staging
        self._tables = tables
        self._forward = forward
        self._limits = {"block_size": block_size, "max_query_len": 1, "max_seq_len": max_model_len}
        self._all_rows = runtime.send_now(range(max(sizes)))  # kept: graphs read it
        self._sizes = sorted(sizes)
        self._graphs: dict[int, Graph] = {}
        # The largest first: the others fit into the memory that it took.
        for size in reversed(self._sizes):
            self._graphs[size] = self._capture(size)

    def size_for(self, num_requests: int) -> int | None:
        """The smallest graph that holds so many; None: none does."""
        place = bisect.bisect_left(self._sizes, num_requests)
        return self._sizes[place] if place < len(self._sizes) else None

    def replay(self, size: int) -> torch.Tensor:
        """Queue a step whose inputs were sent; logits [size, V], valid until the next step."""
        graph = self._graphs[size]
        graph.replay()
        return graph.output

    def _capture(self, size: int) -> Graph:
        layout = Layout(forward_fields(size, size))
        write_forward(layout.on_host(self._staging.host()), _nothing(), self._tables.padding_row)
        self._staging.send(layout.num_bytes)
        device = layout.on_device(self._staging.block)
        logits_indices = self._all_rows[:size]

        def step() -> torch.Tensor:
            return self._forward(device_forward_batch(device, self._tables, logits_indices, **self._limits))

        for _ in range(WARM_UPS):
            step()
        return self._runtime.capture(step)


def _nothing() -> PackedStep:
    """A step of no request: all padding."""
    none = np.zeros(0, dtype=np.int64)
    return PackedStep(none, none, none, none, none, none, 1)
