"""A device executor on the fake device, and what tests do with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.executor.device.executor import DeviceExecutor, DeviceSettings
from engine.executor.device.fake import FakeRuntime
from engine.executor.device.graphs import default_capture_sizes
from engine.executor.torch_executor import TorchExecutor
from engine.models.backend import ModelBackend
from tests.device.graph_safe_backend import GraphSafeBackend
from tests.differential.backends import tiny_weights
from tests.differential.scenario import MAX_MODEL_LEN

BLOCK_SIZE = 4
NUM_BLOCKS = 40


@dataclass
class Machine:
    runtime: FakeRuntime
    backend: GraphSafeBackend
    executor: DeviceExecutor

    def kv(self) -> torch.Tensor:
        """All K and V by slot, [2 · layers, slots, g, D]."""
        caches = [*self.backend._key_caches, *self.backend._value_caches]
        return torch.stack([cache.flatten(0, 1) for cache in caches])

    def fill_kv(self, value: float) -> None:
        for cache in (*self.backend._key_caches, *self.backend._value_caches):
            cache.fill_(value)


def machine(capture_sizes: Sequence[int] = (1, 2, 4), max_num_seqs: int = 4) -> Machine:
    runtime = FakeRuntime()
    backend = GraphSafeBackend(tiny_weights(torch.float64), MAX_MODEL_LEN, BLOCK_SIZE)
    settings = DeviceSettings(max_num_seqs, MAX_MODEL_LEN, BLOCK_SIZE, 64, capture_sizes)
    return Machine(runtime, backend, DeviceExecutor(runtime, backend, NUM_BLOCKS, settings))


def plain_executor(max_num_seqs: int = 4) -> TorchExecutor:
    """The same model without a device: what tokens have to be."""
    backend = GraphSafeBackend(tiny_weights(torch.float64), MAX_MODEL_LEN, BLOCK_SIZE)
    return TorchExecutor(backend, NUM_BLOCKS, max_num_seqs, MAX_MODEL_LEN, BLOCK_SIZE)


def with_graphs(backend: ModelBackend, config: EngineConfig) -> DeviceExecutor:
    return _executor(backend, config, default_capture_sizes(config.max_num_seqs))


def without_graphs(backend: ModelBackend, config: EngineConfig) -> DeviceExecutor:
    return _executor(backend, config, ())


def _executor(backend: ModelBackend, config: EngineConfig, sizes: Sequence[int]) -> DeviceExecutor:
    settings = DeviceSettings(
        config.max_num_seqs, MAX_MODEL_LEN, config.block_size, config.max_num_batched_tokens, sizes
    )
    return DeviceExecutor(FakeRuntime(), backend, config.num_gpu_blocks_override or 2, settings)
