"""The bare forward at fixed batch and context: decode steps without a scheduler, a queue or a sampler.

Cells are visited in random order, again and again, so that a machine that gets slower is not taken for a
longer context. What the KV holds does not matter for the time; blocks are dealt out in random order, as a
used pool has them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.errors import EngineError, InvalidInputError
from engine.executor.factory import create_executor
from engine.executor.info import ExecutorInfo
from engine.executor.torch_executor import TorchExecutor
from engine.models.backend import ForwardBatch, ModelBackend

_PROBE_BYTES = 128 << 20
_PROBES = 3


@dataclass(frozen=True, slots=True)
class GridCell:
    """One (batch, context): ``times_ns`` of its forwards, in the order they were measured."""

    batch: int
    context: int
    times_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ForwardGrid:
    """What was measured, and the floor of memory under it."""

    info: ExecutorInfo
    cells: tuple[GridCell, ...]
    read_gb_s: float
    """Median of readings taken between the forwards, with the engine's number of threads."""


def measure_forward(
    config: EngineConfig,
    batches: Sequence[int],
    contexts: Sequence[int],
    repeats: int,
    progress: Callable[[int, int], None] | None = None,
) -> ForwardGrid:
    """Load the model and time one decode step per cell, ``repeats`` times.

    Args:
        config: ``num_gpu_blocks_override`` is chosen so that the largest cell fits, unless it is given.
        batches: requests that decode one token each.
        contexts: tokens of each, the new one included.
        progress: is told (done, of) after each forward.

    Raises:
        ModelLoadError, InvalidInputError: the model can't be loaded, or a cell does not fit.
    """
    if config.tensor_parallel_size > 1:
        raise InvalidInputError("tensor_parallel_size", config.tensor_parallel_size, "1 for a bare forward")
    if config.device == "cuda":
        raise InvalidInputError("device", "cuda", "cpu for a bare forward; benchmarks/gpu.py times GPUs")
    config = config.model_copy(update={"device": "cpu"})
    needed = max(batches) * -(-max(contexts) // config.block_size) + 1
    longest = config.max_model_len or max(contexts)
    if max(contexts) > longest:
        raise InvalidInputError("contexts", max(contexts), f"at most max_model_len ({longest})")
    blocks = config.num_gpu_blocks_override or max(needed, -(-longest // config.block_size) + 1)
    config = config.model_copy(update={"num_gpu_blocks_override": blocks, "max_model_len": longest})
    executor, info = create_executor(config)
    if not isinstance(executor, TorchExecutor):
        raise EngineError(f"{type(executor).__name__} has no backend to run alone")
    if needed > info.num_kv_blocks:
        raise InvalidInputError(
            "num_gpu_blocks_override", info.num_kv_blocks, f"at least {needed} for the largest cell"
        )
    rng = random.Random(0)
    backend = executor.backend
    batch_of = {
        (batch, context): decode_batch(batch, context, config.block_size, info, rng)
        for batch in batches
        for context in contexts
    }
    times: dict[tuple[int, int], list[int]] = {cell: [] for cell in batch_of}
    floor = _FloorProbe(info.num_threads)
    for inputs in batch_of.values():
        _time(backend, inputs)  # first touch of its KV, and of the kernel's own buffers
    total, done = repeats * len(batch_of), 0
    for _ in range(repeats):
        order = list(batch_of)
        rng.shuffle(order)
        floor.sample()
        for cell in order:
            times[cell].append(_time(backend, batch_of[cell]))
            done += 1
            if progress is not None:
                progress(done, total)
    executor.shutdown()
    cells = tuple(GridCell(batch, context, tuple(ns)) for (batch, context), ns in times.items())
    return ForwardGrid(info, cells, floor.median())


def decode_batch(
    batch: int, context: int, block_size: int, info: ExecutorInfo, rng: random.Random
) -> ForwardBatch:
    """``batch`` requests at position ``context - 1``, each with blocks of its own."""
    blocks = -(-context // block_size)
    ids = list(range(1, info.num_kv_blocks))
    rng.shuffle(ids)
    table = torch.tensor(ids[: batch * blocks], dtype=torch.int32).reshape(batch, blocks)
    slots = table[:, -1].to(torch.int64) * block_size + (context - 1) % block_size
    return ForwardBatch(
        input_ids=torch.tensor([rng.randrange(info.vocab_size) for _ in range(batch)], dtype=torch.int64),
        positions=torch.full((batch,), context - 1, dtype=torch.int64),
        query_start_loc=torch.arange(batch + 1, dtype=torch.int32),
        seq_lens=torch.full((batch,), context, dtype=torch.int32),
        block_table=table,
        slot_mapping=slots,
        logits_indices=torch.arange(batch, dtype=torch.int64),
        max_query_len=1,
        max_seq_len=context,
    )


def _time(backend: ModelBackend, inputs: ForwardBatch) -> int:
    begin = time.perf_counter_ns()
    backend.forward(inputs)
    return time.perf_counter_ns() - begin


class _FloorProbe:
    """Reads memory once with as many threads as the engine has."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._memory = torch.ones(_PROBE_BYTES // 4)
        self._found: list[float] = []

    def sample(self) -> None:
        before = torch.get_num_threads()
        torch.set_num_threads(self._threads)
        self._memory.sum()
        rates = []
        for _ in range(_PROBES):
            begin = time.perf_counter()
            self._memory.sum()
            rates.append(_PROBE_BYTES / (time.perf_counter() - begin) / 1e9)
        torch.set_num_threads(before)
        self._found.append(max(rates))

    def median(self) -> float:
        return sorted(self._found)[len(self._found) // 2]
