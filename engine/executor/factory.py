"""``create_executor``: model, backend, KV cache and threads from one configuration."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from engine.config import EngineConfig
from engine.errors import InvalidInputError, ModelLoadError
from engine.executor.base import Executor
from engine.executor.device.choose import resolve_device
from engine.executor.info import ExecutorInfo
from engine.executor.kv_sizing import num_kv_blocks
from engine.executor.torch_executor import TorchExecutor
from engine.executor.warm_up import warm_up
from engine.kernels.threads import usable_physical_cores
from engine.models.assemble import Placement
from engine.models.backend import ModelBackend
from engine.models.dense import ReferenceBackend
from engine.models.loader import LoadedModel, load_model
from engine.parallel.group import SOLO, RankGroup
from engine.parallel.shard import Shard

if TYPE_CHECKING:
    from engine.executor.device.executor import DeviceSettings
    from engine.executor.device.runtime import DeviceRuntime

logger = logging.getLogger(__name__)

_WARM_UP_TOKENS = 64


def create_executor(config: EngineConfig) -> tuple[Executor, ExecutorInfo]:
    """Load the model and make it ready to run plans.

    Raises:
        ModelLoadError: the model can't be loaded, or the chosen backend can't be built.
        InvalidInputError: a setting doesn't fit the model or this machine.
        EngineError: another rank of ``tensor_parallel_size`` failed.
    """
    executor: Executor
    resolve_device(config)  # before anything is fetched, loaded or started
    if config.tensor_parallel_size > 1:
        from engine.parallel.start import start_ranks  # starts processes; one rank needs none of it

        executor, parts = start_ranks(config)
    else:
        parts = load_rank(config, Shard())
        parts.build_backend(SOLO)
        executor = parts.build_executor(parts.size_kv())
    try:
        warm_up(executor, min(_WARM_UP_TOKENS, parts.model.max_model_len - 1), config.block_size)
    except BaseException:
        executor.shutdown()
        raise
    return executor, parts.info(executor.num_kv_blocks)


def load_rank(config: EngineConfig, shard: Shard) -> RankParts:
    """The weights of one rank, in memory.

    Raises:
        ModelLoadError, InvalidInputError: as :func:`engine.models.loader.load_model`.
    """
    num_threads = config.num_threads or max(1, usable_physical_cores() // shard.size)
    torch.set_num_threads(num_threads)
    device = resolve_device(config, shard.rank)
    runtime: DeviceRuntime | None = None
    if device.type == "cuda":
        from engine.executor.device.cuda_runtime import CudaRuntime

        runtime = CudaRuntime(device, config.nvtx_ranges)
    model = load_model(config, Placement(shard, device))
    return RankParts(config, shard, device, model, num_threads, runtime)


class RankParts:
    """One rank on its way from weights to an executor; every rank takes the steps in the order of the
    methods.

    Args:
        runtime: of an accelerator; None: the CPU.
    """

    backend: ModelBackend
    backend_reason: str | None

    def __init__(
        self,
        config: EngineConfig,
        shard: Shard,
        device: torch.device,
        model: LoadedModel,
        num_threads: int,
        runtime: DeviceRuntime | None = None,
    ) -> None:
        self.config = config
        self.shard = shard
        self.device = device
        self.model = model
        self.num_threads = num_threads
        self.runtime = runtime

    def build_backend(self, group: RankGroup) -> None:
        """
        Raises:
            ModelLoadError, InvalidInputError: the chosen backend isn't available, or can't do what is asked.
        """
        self.backend, self.backend_reason = _create_backend(
            self.config, self.model, self.num_threads, group, self.device
        )
        if self.backend.name == "cpu":
            # The native kernels have threads of their own. A second pool, spinning after each of the
            # sampler's small operations, would take the cores from them: on busy cores, sampling took ten
            # times as long.
            torch.set_num_threads(1)

    def size_kv(self) -> int:
        """KV blocks that this rank has room for. Ranks on the CPU share its memory.

        Raises:
            InvalidInputError: not even one request fits.
        """
        bytes_per_block = self.backend.kv_bytes_per_block()
        max_model_len = self.model.max_model_len
        if self.runtime is None:
            return num_kv_blocks(self.config, max_model_len, bytes_per_block * self.shard.size)
        from engine.executor.device.memory import device_room

        room = device_room(
            self.runtime, self.backend, self._device_settings(), self.config.gpu_memory_utilization
        )
        return num_kv_blocks(self.config, max_model_len, bytes_per_block, room)

    def build_executor(self, num_blocks: int) -> Executor:
        config, backend = self.config, self.backend
        if self.runtime is None:
            return TorchExecutor(
                backend, num_blocks, config.max_num_seqs, self.model.max_model_len, config.block_size
            )
        from engine.executor.device.executor import DeviceExecutor

        forward = torch.compile(backend.forward, dynamic=True) if config.torch_compile else backend.forward
        return DeviceExecutor(self.runtime, backend, num_blocks, self._device_settings(), forward)

    def _device_settings(self) -> DeviceSettings:
        from engine.executor.device.executor import DeviceSettings
        from engine.executor.device.graphs import default_capture_sizes

        config = self.config
        sizes: Sequence[int] = ()
        # The reference waits for the device in every layer: a graph can't hold it.
        if not config.enforce_eager and self.backend.name == "triton":
            sizes = config.cudagraph_capture_sizes or default_capture_sizes(config.max_num_seqs)
        return DeviceSettings(
            config.max_num_seqs,
            self.model.max_model_len,
            config.block_size,
            config.max_num_batched_tokens,
            sizes,
        )

    def info(self, num_blocks: int) -> ExecutorInfo:
        config, model = self.config, self.model
        return ExecutorInfo(
            model=model.description.source.name,
            architecture=model.config.architecture,
            dtype=str(model.dtype).removeprefix("torch."),
            attention_backend=self.backend.name,
            attention_backend_reason=self.backend_reason,
            quantization=config.quantization,
            num_threads=self.num_threads,
            device=str(self.device),
            tensor_parallel_size=self.shard.size,
            max_model_len=model.max_model_len,
            block_size=config.block_size,
            num_kv_blocks=num_blocks,
            kv_cache_bytes=num_blocks * self.backend.kv_bytes_per_block() * self.shard.size,
            vocab_size=model.config.vocab_size,
            eos_token_ids=list(model.eos_token_ids),
            load_seconds=round(model.load_seconds, 3),
            model_config=dataclasses.asdict(model.config),
        )


def _triton_backend(
    config: EngineConfig, model: LoadedModel, group: RankGroup, device: torch.device
) -> ModelBackend:
    if config.quantization != "none":
        raise InvalidInputError("quantization", config.quantization, "none with the triton backend")
    from engine.kernels.triton.backend import TritonBackend  # brings Triton

    return TritonBackend(
        model.weights,
        model.max_model_len,
        config.block_size,
        device=device,
        kv_cache_dtype=config.kv_cache_dtype,
        max_num_seqs=config.max_num_seqs,
        group=group,
    )


def _create_backend(
    config: EngineConfig, model: LoadedModel, num_threads: int, group: RankGroup, device: torch.device
) -> tuple[ModelBackend, str | None]:
    reason: str | None = None
    wanted = config.attention_backend
    if wanted == "triton" or (wanted == "auto" and device.type == "cuda"):
        return _triton_backend(config, model, group, device), None
    if config.kv_cache_dtype != "auto":
        raise InvalidInputError("kv_cache_dtype", config.kv_cache_dtype, "auto without the triton backend")
    if device.type == "cuda":
        if wanted == "cpu":
            raise InvalidInputError("attention_backend", "cpu", "triton or reference with device='cuda'")
    elif group.size > 1:
        reason = "the native CPU kernels run on one rank"
        if wanted == "cpu":
            raise InvalidInputError(
                "attention_backend", "cpu", f"reference with tensor_parallel_size={group.size}: {reason}"
            )
    elif wanted != "reference":
        try:
            # Imported here because building the native kernels may need a compiler that isn't there.
            from engine.kernels.cpu.backend import CpuBackend

            native = CpuBackend(
                model.weights,
                model.max_model_len,
                config.block_size,
                config.quantization,
                num_threads,
                min(config.max_num_batched_tokens, config.max_num_seqs * model.max_model_len),
            )
            return native, None
        except (ImportError, OSError, RuntimeError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            if wanted == "cpu":
                raise ModelLoadError(f"attention_backend='cpu' isn't available here: {reason}") from None
            logger.warning("attention_backend=reference, the native CPU kernels aren't available: %s", reason)
    if config.quantization != "none":
        raise InvalidInputError(
            "quantization", config.quantization, "none with attention_backend='reference'"
        )
    return ReferenceBackend(model.weights, model.max_model_len, config.block_size, group), reason
