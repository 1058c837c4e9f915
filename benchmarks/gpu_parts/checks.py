"""Every kernel against a reference in float64, on the device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.gpu_parts.bench import Bench
from benchmarks.gpu_parts.cases import attention_case
from benchmarks.gpu_parts.shapes import FAKE_SHAPES, SHAPES
from engine.attention.paged import paged_attention
from engine.models.config import ModelConfig
from engine.models.rope import apply_rope, rope_cos_sin

EPS = 1e-5
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Largest error allowed, as a share of the reference's root mean square plus the element itself."""

Check = tuple[str, torch.Tensor, torch.Tensor]


def check_attention(bench: Bench) -> Iterator[tuple[str, Any]]:
    """One row a check, as the other two: ``what``, ``error`` (of the allowed), ``ok``."""
    return _rows(_attention(bench))


def check_elementwise(bench: Bench) -> Iterator[tuple[str, Any]]:
    return _rows(_elementwise(bench))


def check_sampling(bench: Bench) -> Iterator[tuple[str, Any]]:
    return _rows(_sampling(bench))


def _rows(checks: Iterator[Check]) -> Iterator[tuple[str, Any]]:
    for name, got, wanted in checks:
        error = _error(got, wanted)
        yield "checks", {"what": name, "error": round(error, 4), "ok": error <= 1.0}


def _error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """Largest error in units of what is allowed; NaN counts as infinite."""
    wanted = wanted.double()
    scale = wanted.square().mean().sqrt() + wanted.abs()
    error = (got.double() - wanted).abs() / (TOLERANCE.get(got.dtype, 1e-6) * scale + 1e-12)
    return float(error.nan_to_num(nan=float("inf")).max())


def _shapes(bench: Bench) -> dict[str, ModelConfig]:
    return FAKE_SHAPES if bench.fake else SHAPES


def _attention(bench: Bench) -> Iterator[Check]:
    from engine.kernels.triton.decode import DecodeWorkspace, decode_attention
    from engine.kernels.triton.prefill import prefill_attention

    contexts = [1, 15, 16, 17, 33] if bench.fake else [1, 16, 17, 100, 1000, 4097, 9000]
    chunks = [(20, 20), (33, 8), (1, 1)] if bench.fake else [(300, 300), (4100, 513), (77, 1), (2048, 64)]
    for name, config in _shapes(bench).items():
        scale = config.head_size**-0.5
        for block_size in (16,) if bench.fake else (16, 64):
            case = attention_case(config, [(c, 1) for c in contexts], block_size, bench.dtype, bench.device)
            for splits in (1, 4):
                workspace = DecodeWorkspace.allocate(
                    len(contexts), config.num_heads, config.head_size, splits, bench.device
                )
                case.out.fill_(float("nan"))
                decode_attention(
                    *case.tensors, scale=scale, num_splits=splits, workspace=workspace if splits > 1 else None
                )
                yield f"decode {name} block {block_size} splits {splits}", case.out, _reference(case.tensors)
            case = attention_case(config, chunks, block_size, bench.dtype, bench.device)
            prefill_attention(*case.tensors, scale=scale)
            yield f"prefill {name} block {block_size}", case.out, _reference(case.tensors)


def _reference(tensors: tuple[torch.Tensor, ...]) -> torch.Tensor:
    query, keys, values, table, seq_lens, starts, _ = tensors
    by_slot = [cache.transpose(1, 2).double() for cache in (keys, values)]
    return paged_attention(query.double(), *by_slot, starts, seq_lens, table)


def _elementwise(bench: Bench) -> Iterator[Check]:
    from engine.kernels.triton.activation import silu_and_mul
    from engine.kernels.triton.norm import rms_norm
    from engine.kernels.triton.rope import rope_and_cache

    tokens = 5 if bench.fake else 77
    for name, config in _shapes(bench).items():

        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device=bench.device).to(bench.dtype)

        x, residual = normal(tokens, config.hidden_size), normal(tokens, config.hidden_size)
        weight = normal(config.hidden_size)
        total = (x.float() + residual.float()).to(bench.dtype).double()
        out = torch.full_like(x, float("nan"))
        rms_norm(x, weight, EPS, out, residual)
        yield f"rms_norm {name}", out, _rms_norm(total, weight)
        yield f"rms_norm residual {name}", residual, total

        gate_up = normal(tokens, 2 * config.intermediate_size)
        activated = torch.full_like(gate_up[:, : config.intermediate_size], float("nan")).contiguous()
        silu_and_mul(gate_up, activated)
        gate, up = gate_up.double().chunk(2, dim=-1)
        yield f"silu_and_mul {name}", activated, F.silu(gate) * up

        cos, sin = (part.to(bench.device) for part in rope_cos_sin(config, 512))
        positions = torch.arange(tokens, device=bench.device) * 3
        slots = torch.arange(tokens, device=bench.device) + 16
        h, g, d = config.num_heads, config.num_kv_heads, config.head_size
        qkv = normal(tokens, (h + 2 * g) * d)
        key_cache = torch.zeros(2 + tokens // 16 + 1, g, 16, d, dtype=bench.dtype, device=bench.device)
        value_cache, rotated = torch.zeros_like(key_cache), torch.empty_like(normal(tokens, h, d))
        q_norm, k_norm = (normal(d), normal(d)) if config.qk_norm else (None, None)
        heads = qkv.view(tokens, -1, d).double().clone()
        rope_and_cache(
            qkv, positions, slots, cos, sin, rotated, key_cache, value_cache,
            q_norm=q_norm, k_norm=k_norm, eps=EPS,
        )  # fmt: skip
        query, key, value = heads[:, :h], heads[:, h : h + g], heads[:, h + g :]
        if q_norm is not None and k_norm is not None:
            query, key = _rms_norm(query, q_norm), _rms_norm(key, k_norm)
        turns = cos[positions].double(), sin[positions].double()
        written = [cache.transpose(1, 2).flatten(0, 1)[slots] for cache in (key_cache, value_cache)]
        yield f"rope query {name}", rotated, apply_rope(query, *turns)
        yield f"rope key {name}", written[0], apply_rope(key, *turns)
        yield f"cache value {name}", written[1], value


def _rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return weight.double() * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPS)


def _sampling(bench: Bench) -> Iterator[Check]:
    from engine.kernels.triton.sampling import apply_penalties, top_k_top_p_threshold

    rows, vocab = (3, 96) if bench.fake else (32, 128_256)
    device = bench.device
    probs = torch.softmax(3 * torch.randn(rows, vocab, device=device), -1)
    top_k = torch.full((rows,), 40, dtype=torch.int32, device=device)
    ones = torch.ones(rows, device=device)
    threshold, mass = torch.empty_like(ones), torch.empty_like(ones)
    top_k_top_p_threshold(probs, top_k, ones, ones * 0, threshold, mass)
    yield "top_k threshold", threshold, probs.topk(40, -1).values[:, -1]
    top_k_top_p_threshold(probs, top_k * 0 + vocab, ones * 0.9, ones * 0, threshold, mass)
    ordered = probs.double().sort(-1, descending=True).values
    kept = (ordered.cumsum(-1) - ordered < 0.9).sum(-1)
    got = (probs >= threshold[:, None]).sum(-1)
    yield "top_p kept (± 1 token)", (got - kept).abs().clamp_min(1).double(), torch.ones(rows, device=device)

    logits = torch.randn(rows, vocab, device=device)
    seen = torch.stack([torch.randperm(vocab, device=device)[:20] for _ in range(rows)])
    counts = torch.arange(20, device=device).float().repeat(rows)
    expected = logits.double().clone()
    values = expected.gather(1, seen)
    values = torch.where(values > 0, values / 1.3, values * 1.3)
    times = counts.view(rows, 20).double()
    expected.scatter_(1, seen, values - 0.5 * times - 0.25 * (times > 0))
    starts = (torch.arange(rows + 1, device=device) * 20).to(torch.int32)
    apply_penalties(
        logits, starts, seen.flatten(), counts, ones * 1.3, ones * 0.5, ones * 0.25, max_tokens=20
    )
    yield "penalties", logits, expected
