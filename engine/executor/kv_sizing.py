"""How many KV blocks to allocate. No torch."""

from __future__ import annotations

from dataclasses import dataclass

import psutil

from engine.config import EngineConfig
from engine.errors import InvalidInputError

_DEFAULT_BYTES = 1 << 30
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Room:
    """Memory that the KV cache may take: ``default`` bytes if nobody says more, ``available`` at most.

    ``field`` is the setting that decided ``default``, with its ``value``.
    """

    default: int
    available: int
    field: str
    value: object


def host_room() -> Room:
    """1 GiB, but never over half of the free memory."""
    available = psutil.virtual_memory().available
    default = min(_DEFAULT_BYTES, available // 2)
    return Room(default, available, "kv_cache_memory_bytes", default)


def num_kv_blocks(
    config: EngineConfig, max_model_len: int, bytes_per_block: int, room: Room | None = None
) -> int:
    """Blocks of the pool, the null block included.

    ``num_gpu_blocks_override`` wins, then ``kv_cache_memory_bytes``, then what ``room`` (default: the
    host's) allows. A size in bytes is cut to what ``max_num_seqs`` requests of ``max_model_len`` tokens could
    use at most.

    Raises:
        InvalidInputError: not even one request of ``max_model_len`` tokens fits, or the memory isn't there.
    """
    blocks_per_request = -(-max_model_len // config.block_size)
    room = room or host_room()
    available = room.available
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
        value: object = budget
        if budget > available:
            raise InvalidInputError(field, budget, f"at most the free memory, {available} bytes")
    else:
        budget, field, value = room.default, room.field, room.value
    blocks = min(budget // bytes_per_block, useful)
    _check_fits(field, value, blocks, blocks_per_request, max_model_len, bytes_per_block, config)
    return blocks


def _check_fits(
    field: str,
    value: object,
    blocks: int,
    per_request: int,
    max_model_len: int,
    bytes_per_block: int,
    config: EngineConfig,
) -> None:
    if blocks - 1 >= per_request:
        return
    need = per_request + 1
    needed = {
        "num_gpu_blocks_override": f"at least {need}",
        "kv_cache_memory_bytes": f"at least {need * bytes_per_block}",
    }.get(field, f"{need * bytes_per_block // _MIB} MiB left for the KV cache")
    room = max(0, (blocks - 1) * config.block_size)
    raise InvalidInputError(
        field, value,
        f"{needed}, so that one request of max_model_len={max_model_len} tokens fits ({need} blocks "
        f"of {config.block_size} tokens, null block included); or max_model_len of at most {room}",
    )  # fmt: skip
