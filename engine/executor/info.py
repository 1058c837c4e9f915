"""What an executor turned out to be: goes from the core to the front end, echoed by ``/server_info``."""

from __future__ import annotations

import msgspec


class ExecutorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Settings in force, after every ``auto`` was decided."""

    model: str
    architecture: str
    dtype: str
    attention_backend: str
    attention_backend_reason: str | None
    """Why ``auto`` did not take the native kernels; None: it did, or the user chose."""
    quantization: str
    num_threads: int
    """Of each rank."""
    device: str = "cpu"
    """Of rank 0."""
    tensor_parallel_size: int = 1
    max_model_len: int
    block_size: int
    num_kv_blocks: int
    """The null block included."""
    kv_cache_bytes: int
    vocab_size: int
    eos_token_ids: list[int]
    load_seconds: float
    model_config: dict[str, object]
    """:class:`engine.models.config.ModelConfig`, as plain data."""
