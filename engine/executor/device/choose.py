"""Which device a rank runs on, and what to say when it isn't there."""

from __future__ import annotations

import torch

from engine.config import EngineConfig
from engine.errors import InvalidInputError

_ONLY_ON_CUDA = (
    "gpu_memory_utilization",
    "enforce_eager",
    "cudagraph_capture_sizes",
    "torch_compile",
    "nvtx_ranges",
)


def resolve_device(config: EngineConfig, rank: int = 0) -> torch.device:
    """The device of ``rank``. ``auto`` is CUDA where there is a device, unless a setting wants the CPU.

    Raises:
        InvalidInputError: there is no CUDA device, or not one for every rank; or a setting means nothing on
            the CPU.
    """
    wanted = config.device
    if wanted == "auto":
        for_cpu = config.attention_backend in ("reference", "cpu") or config.quantization != "none"
        wanted = "cpu" if for_cpu or not torch.cuda.is_available() else "cuda"
    if wanted == "cpu":
        _refuse_cuda_settings(config)
        return torch.device("cpu")
    if not torch.cuda.is_available():
        why = "torch finds no CUDA device" if torch.version.cuda else "this torch is built without CUDA"
        raise InvalidInputError("device", "cuda", f"{why}; cpu is what can be used here")
    if torch.cuda.device_count() < config.tensor_parallel_size:
        raise InvalidInputError(
            "tensor_parallel_size",
            config.tensor_parallel_size,
            f"at most {torch.cuda.device_count()}, the CUDA devices that there are",
        )
    return torch.device("cuda", rank)


def _refuse_cuda_settings(config: EngineConfig) -> None:
    for name in _ONLY_ON_CUDA:
        value = getattr(config, name)
        if value != EngineConfig.model_fields[name].default:
            raise InvalidInputError(name, value, "only with a CUDA device; this run is on the CPU")
