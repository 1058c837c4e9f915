"""``create_executor``: model, backend, KV cache and threads from one configuration."""

from __future__ import annotations

import dataclasses
import logging

import torch

from engine.config import EngineConfig
from engine.errors import InvalidInputError, ModelLoadError
from engine.executor.base import Executor
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
    cores = max(1, usable_physical_cores() // shard.size)
    num_threads = config.num_threads or cores
    torch.set_num_threads(num_threads)
    device = torch.device("cpu")
    model = load_model(config, Placement(shard, device))
    return RankParts(config, shard, device, model, num_threads)


class RankParts:
    """One rank on its way from weights to an executor; every rank takes the steps in the order of the
    methods.
    """

    backend: ModelBackend
    backend_reason: str | None

    def __init__(
        self, config: EngineConfig, shard: Shard, device: torch.device, model: LoadedModel, num_threads: int
    ) -> None:
        self.config = config
        self.shard = shard
        self.device = device
        self.model = model
        self.num_threads = num_threads

    def build_backend(self, group: RankGroup) -> None:
        """
        Raises:
            ModelLoadError, InvalidInputError: the chosen backend isn't available, or can't do what is asked.
        """
        self.backend, self.backend_reason = _create_backend(self.config, self.model, self.num_threads, group)
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
        bytes_per_block = self.backend.kv_bytes_per_block() * self.shard.size
        return num_kv_blocks(self.config, self.model.max_model_len, bytes_per_block)

    def build_executor(self, num_blocks: int) -> Executor:
        config = self.config
        return TorchExecutor(
            self.backend, num_blocks, config.max_num_seqs, self.model.max_model_len, config.block_size
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


def _create_backend(
    config: EngineConfig, model: LoadedModel, num_threads: int, group: RankGroup
) -> tuple[ModelBackend, str | None]:
    reason: str | None = None
    if group.size > 1:
        reason = "the native CPU kernels run on one rank"
        if config.attention_backend == "cpu":
            raise InvalidInputError(
                "attention_backend", "cpu", f"reference with tensor_parallel_size={group.size}: {reason}"
            )
    elif config.attention_backend != "reference":
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
            if config.attention_backend == "cpu":
                raise ModelLoadError(f"attention_backend='cpu' isn't available here: {reason}") from None
            logger.warning("attention_backend=reference, the native CPU kernels aren't available: %s", reason)
    if config.quantization != "none":
        raise InvalidInputError(
            "quantization", config.quantization, "none with attention_backend='reference'"
        )
    return ReferenceBackend(model.weights, model.max_model_len, config.block_size, group), reason
