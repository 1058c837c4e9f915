"""``create_executor``: model, backend, KV cache and threads from one configuration."""

from __future__ import annotations

import dataclasses
import logging

import torch

from engine.config import EngineConfig
from engine.errors import InvalidInputError, ModelLoadError
from engine.executor.info import ExecutorInfo
from engine.executor.kv_sizing import num_kv_blocks
from engine.executor.torch_executor import TorchExecutor
from engine.executor.warm_up import warm_up
from engine.kernels.threads import usable_physical_cores
from engine.models.backend import ModelBackend
from engine.models.dense import ReferenceBackend
from engine.models.loader import LoadedModel, load_model

logger = logging.getLogger(__name__)

_WARM_UP_TOKENS = 64


def create_executor(config: EngineConfig) -> tuple[TorchExecutor, ExecutorInfo]:
    """Load the model and make it ready to run plans.

    Raises:
        ModelLoadError: the model can't be loaded, or the chosen backend can't be built.
        InvalidInputError: a setting doesn't fit the model or this machine.
    """
    num_threads = config.num_threads or usable_physical_cores()
    torch.set_num_threads(num_threads)
    model = load_model(config)
    backend, reason = _create_backend(config, model, num_threads)
    if backend.name == "cpu":
        # The native kernels have threads of their own. A second pool, spinning after each of the sampler's
        # small operations, would take the cores from them: on busy cores, sampling took ten times as long.
        torch.set_num_threads(1)
    bytes_per_block = backend.kv_bytes_per_block()
    blocks = num_kv_blocks(config, model.max_model_len, bytes_per_block)
    executor = TorchExecutor(backend, blocks, config.max_num_seqs, model.max_model_len, config.block_size)
    warm_up(executor, min(_WARM_UP_TOKENS, model.max_model_len - 1), config.block_size)
    info = ExecutorInfo(
        model=model.description.source.name,
        architecture=model.config.architecture,
        dtype=str(model.dtype).removeprefix("torch."),
        attention_backend=backend.name,
        attention_backend_reason=reason,
        quantization=config.quantization,
        num_threads=num_threads,
        max_model_len=model.max_model_len,
        block_size=config.block_size,
        num_kv_blocks=blocks,
        kv_cache_bytes=blocks * bytes_per_block,
        vocab_size=model.config.vocab_size,
        eos_token_ids=list(model.eos_token_ids),
        load_seconds=round(model.load_seconds, 3),
        model_config=dataclasses.asdict(model.config),
    )
    return executor, info


def _create_backend(
    config: EngineConfig, model: LoadedModel, num_threads: int
) -> tuple[ModelBackend, str | None]:
    reason: str | None = None
    if config.attention_backend != "reference":
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
    return ReferenceBackend(model.weights, model.max_model_len, config.block_size), reason
