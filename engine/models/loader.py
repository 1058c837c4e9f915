"""``load_model``: one call from the configuration to weights in memory, whatever the file format."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import torch

from engine.config import EngineConfig
from engine.model_store import ModelSource, resolve_model
from engine.models.assemble import WHOLE_ON_CPU, Placement
from engine.models.config import ModelConfig
from engine.models.description import ModelDescription, describe_gguf, load_model_config
from engine.models.gguf_file import GGUFFile, read_gguf
from engine.models.gguf_loader import load_gguf_weights
from engine.models.safetensors_loader import dummy_weights, load_safetensors_weights
from engine.models.weights import ModelWeights

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in memory, with the limits and the dtype in force."""

    description: ModelDescription
    weights: ModelWeights
    dtype: torch.dtype
    max_model_len: int
    load_seconds: float

    @property
    def config(self) -> ModelConfig:
        return self.description.config

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return self.description.eos_token_ids


def describe_model(config: EngineConfig) -> ModelDescription:
    """What ``config.model`` says about itself; fetches an embedded model, reads no weights.

    Raises:
        ModelLoadError: missing, damaged or unsupported model.
    """
    return _describe(resolve_model(config.model))[0]


def _describe(source: ModelSource) -> tuple[ModelDescription, GGUFFile | None]:
    """What ``source`` says about itself, and the GGUF file where it is one."""
    if source.kind == "gguf":
        file = read_gguf(source.path)
        return describe_gguf(source, file), file
    return load_model_config(source), None


def load_model(config: EngineConfig, placement: Placement = WHOLE_ON_CPU) -> LoadedModel:
    """Resolve ``config.model`` and read its weights (``load_format="dummy"``: invent them).

    Args:
        placement: the device that gets them, and which rank's part of them it gets.

    Raises:
        ModelLoadError: missing, damaged or unsupported model.
        InvalidInputError: ``max_model_len`` is more than the model can do.
    """
    start = time.monotonic()
    source = resolve_model(config.model)
    dtype = resolve_dtype(config.dtype, placement.device)
    description, file = _describe(source)
    max_model_len = description.max_model_len(config.max_model_len)
    if config.load_format == "dummy":
        weights = dummy_weights(description.config, dtype, placement)
    elif file is not None:
        weights = load_gguf_weights(file, description.config, dtype, placement)
    else:
        weights = load_safetensors_weights(source.path, description.config, dtype, placement)
    seconds = time.monotonic() - start
    logger.info("loaded %s (%s) in %.2f s", source.name, str(dtype).removeprefix("torch."), seconds)
    return LoadedModel(description, weights, dtype, max_model_len, seconds)


def resolve_dtype(name: str, device: torch.device = WHOLE_ON_CPU.device) -> torch.dtype:
    """``auto`` is bfloat16 on a GPU and where the CPU multiplies it natively (AVX512-BF16), else float32."""
    if name == "auto":
        if device.type == "cuda":
            return torch.bfloat16
        return torch.bfloat16 if torch.cpu.get_capabilities().get("avx512_bf16") else torch.float32
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
