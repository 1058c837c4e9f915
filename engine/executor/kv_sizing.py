"""How many KV blocks to allocate. No torch."""

from __future__ import annotations

import psutil

from engine.config import EngineConfig
from engine.errors import InvalidInputError

_DEFAULT_BYTES = 1 << 30
_MIB = 1 << 20


def num_kv_blocks(config: EngineConfig, max_model_len: int, bytes_per_block: int) -> int:
    """Blocks of the pool, the null block included.

    ``num_gpu_blocks_override`` wins, then ``kv_cache_memory_bytes``, then 1 GiB but never over half of the
    free memory. A size in bytes is cut to what ``max_num_seqs`` requests of ``max_model_len`` tokens could
    use at most.

    Raises:
        InvalidInputError: not even one request of ``max_model_len`` tokens fits, or the memory isn't there.
    """
    blocks_per_request = -(-max_model_len // config.block_size)
    available = psutil.virtual_memory().available
    if config.num_gpu_blocks_override is not None:
        blocks = config.num_gpu_blocks_override
        if blocks * bytes_per_block > available:
            raise InvalidInputError(
                "num_gpu_blocks_override", blocks,
                f"{blocks * bytes_per_block // _MIB} MiB needed, {available // _MIB} MiB free: at most "
                f"{available // bytes_per_block}",
            )  # fmt: skip
        _check_fits(
            "num_gpu_blocks_override",
            blocks,
            blocks,
            blocks_per_request,
            max_model_len,
            bytes_per_block,
            config,
        )
        return blocks
    useful = config.max_num_seqs * blocks_per_request + 1
    if config.kv_cache_memory_bytes is not None:
        budget, field = config.kv_cache_memory_bytes, "kv_cache_memory_bytes"
        if budget > available:
            raise InvalidInputError(field, budget, f"at most the free memory, {available} bytes")
    else:
        budget, field = min(_DEFAULT_BYTES, available // 2), "kv_cache_memory_bytes"
    blocks = min(budget // bytes_per_block, useful)
    _check_fits(field, budget, blocks, blocks_per_request, max_model_len, bytes_per_block, config)
    return blocks


def _check_fits(
    field: str,
    value: int,
    blocks: int,
    per_request: int,
    max_model_len: int,
    bytes_per_block: int,
    config: EngineConfig,
) -> None:
    if blocks - 1 >= per_request:
        return
    need = per_request + 1
    shown = need if field == "num_gpu_blocks_override" else need * bytes_per_block
    room = max(0, (blocks - 1) * config.block_size)
    raise InvalidInputError(
        field, value,
        f"at least {shown}, so that one request of max_model_len={max_model_len} tokens fits ({need} blocks "
        f"of {config.block_size} tokens, null block included); or max_model_len of at most {room}",
    )  # fmt: skip
