"""Kernels' times as shares of their floors: batch 1 to 256, context 256 to 32k."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.gpu_parts.bench import Bench
from benchmarks.gpu_parts.cases import attention_case, attention_cost
from benchmarks.gpu_parts.shapes import FAKE_SHAPES, SHAPES
from engine.models.config import ModelConfig
from engine.models.rope import rope_cos_sin

KV_BYTES = 18 << 30
"""Of one layer's cache: larger cells are left out."""
BATCHES = (1, 4, 16, 64, 256)
CONTEXTS = (256, 1024, 4096, 32_768)
OTHERS = ((64, 4096), (1, 4096))
"""First in the large shape, and all that there is of the others."""
PREFILLS = (((8192, 8192),), ((8192, 2048),), ((512, 512),) * 16)
BLOCK_SIZE = 16


def time_attention(bench: Bench, name: str) -> Iterator[tuple[str, Any]]:
    """Both attention kernels in the shape called ``name``."""
    config = (FAKE_SHAPES if bench.fake else SHAPES)[name]
    grid = [(batch, context) for context in CONTEXTS for batch in BATCHES]
    cells = [(2, 40)] if bench.fake else [*OTHERS, *(cell for cell in grid if cell not in OTHERS)]
    if not bench.fake and name != "llama-3.1-8b":
        cells = list(OTHERS)
    sizes = (BLOCK_SIZE, 128) if name == "llama-3.1-8b" else (BLOCK_SIZE,)
    for requests in (((32, 16),),) if bench.fake else PREFILLS:
        yield "kernels", _prefill(bench, name, config, requests)
    left_out = 0
    for index, (batch, context) in enumerate(cells):
        if bench.seconds_left < 20:
            left_out = len(cells) - index
            break
        if attention_cost(config, [(context, 1)] * batch, bench.dtype.itemsize)[0] > KV_BYTES:
            bench.notes.append(
                f"decode at batch {batch}, context {context} left out, its cache is above "
                f"{KV_BYTES >> 30} GiB"
            )
            continue
        for block_size in sizes if (batch, context) == (64, 4096) else sizes[:1]:
            yield "kernels", _decode(bench, name, config, batch, context, block_size)
    if left_out:
        bench.notes.append(f"decode: {left_out} cells left out, no time")


def time_others(bench: Bench) -> Iterator[tuple[str, Any]]:
    """The kernels that move rows, and the cut of the sampler, in the first shape."""
    shape = next(iter((FAKE_SHAPES if bench.fake else SHAPES).values()))
    for tokens in (4,) if bench.fake else (64, 8192):
        for row in _elementwise(bench, shape, tokens):
            yield "kernels", row
    yield "kernels", _cut(bench, 2 if bench.fake else 64, shape.vocab_size)


def _decode(
    bench: Bench, name: str, config: ModelConfig, batch: int, context: int, block_size: int
) -> dict[str, Any]:
    from engine.kernels.triton.decode import DecodeWorkspace, decode_attention
    from engine.kernels.triton.launch import decode_splits
    from engine.kernels.triton.platform import current_platform

    requests = [(context, 1)] * batch
    num_bytes, flop = attention_cost(config, requests, bench.dtype.itemsize)
    case = attention_case(config, requests, block_size, bench.dtype, bench.device)
    splits = decode_splits(current_platform().num_sms, batch, config.num_kv_heads, context)
    workspace = DecodeWorkspace.allocate(batch, config.num_heads, config.head_size, splits, bench.device)
    scale = config.head_size**-0.5
    ms = bench.time_ms(
        lambda: decode_attention(
            *case.tensors, scale=scale, num_splits=splits, workspace=workspace if splits > 1 else None
        )
    )
    shape = f"{name} batch {batch} context {context} block {block_size}"
    return {**bench.share("decode attention", shape, ms, num_bytes, flop), "splits": splits}


def _prefill(
    bench: Bench, name: str, config: ModelConfig, requests: tuple[tuple[int, int], ...]
) -> dict[str, Any]:
    from engine.kernels.triton.prefill import prefill_attention

    case = attention_case(config, requests, BLOCK_SIZE, bench.dtype, bench.device)
    scale = config.head_size**-0.5
    ms = bench.time_ms(lambda: prefill_attention(*case.tensors, scale=scale))
    context, queries = requests[0]
    shape = f"{name} {len(requests)} × {queries} of {context}"
    cost = attention_cost(config, requests, bench.dtype.itemsize)
    return bench.share("prefill attention", shape, ms, *cost)


def _elementwise(bench: Bench, config: ModelConfig, tokens: int) -> list[dict[str, Any]]:
    from engine.kernels.triton.activation import silu_and_mul
    from engine.kernels.triton.norm import rms_norm
    from engine.kernels.triton.rope import rope_and_cache

    size, dtype, device = bench.dtype.itemsize, bench.dtype, bench.device
    hidden, inner = config.hidden_size, config.intermediate_size
    h, g, d = config.num_heads, config.num_kv_heads, config.head_size

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device=device).normal_()

    x, residual, weight = normal(tokens, hidden), normal(tokens, hidden), normal(hidden)
    out = torch.empty_like(x)
    norm_ms = bench.time_ms(lambda: rms_norm(x, weight, 1e-5, out, residual))
    gate_up, activated = normal(tokens, 2 * inner), normal(tokens, inner)
    silu_ms = bench.time_ms(lambda: silu_and_mul(gate_up, activated))
    qkv = normal(tokens, (h + 2 * g) * d)
    cos, sin = (part.to(device) for part in rope_cos_sin(config, 16_384))
    positions = torch.arange(tokens, device=device)
    cache = [torch.empty(tokens // 16 + 2, g, 16, d, dtype=dtype, device=device) for _ in range(2)]
    query = qkv[:, : h * d].view(tokens, h, d)
    rope_ms = bench.time_ms(
        lambda: rope_and_cache(qkv, positions, positions + 16, cos, sin, query, cache[0], cache[1])
    )
    rope_bytes = tokens * ((2 * h + 4 * g) * d * size + 4 * d)
    shape = f"{tokens} tokens"
    return [
        bench.share("rms_norm + residual", shape, norm_ms, 4 * tokens * hidden * size, 0),
        bench.share("silu · mul", shape, silu_ms, 3 * tokens * inner * size, 0),
        bench.share("rope + KV write", shape, rope_ms, rope_bytes, 0),
    ]


def _cut(bench: Bench, rows: int, vocab: int) -> dict[str, Any]:
    from engine.kernels.triton.sampling import top_k_top_p_threshold

    device = bench.device
    probs = torch.softmax(torch.randn(rows, vocab, device=device), -1)
    top_k = torch.full((rows,), 50, dtype=torch.int32, device=device)
    ones = torch.ones(rows, device=device)
    outs = torch.empty_like(ones), torch.empty_like(ones)
    ms = bench.time_ms(lambda: top_k_top_p_threshold(probs, top_k, ones * 0.9, ones * 0, *outs))
    return bench.share("top-k and top-p cut", f"{rows} × {vocab}", ms, 4 * rows * vocab, 0)
