"""RMSNorm, SiLU·mul, rotary embedding with the cache write, and e4m3 codes, against float64 or torch."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from engine.kernels.triton.activation import silu_and_mul
from engine.kernels.triton.fp8 import decode_e4m3, encode_e4m3
from engine.kernels.triton.norm import rms_norm
from engine.kernels.triton.platform import FP8_SOFTWARE
from engine.kernels.triton.rope import rope_and_cache
from engine.models.rope import apply_rope, rope_cos_sin
from tests.kernels_triton.cases import DEVICE
from tests.kernels_triton.models import tiny_config

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

RELATIVE = {F32: 3e-6, F16: 2e-3, BF16: 2e-2}
"""One rounding to the type (the interpreter truncates bfloat16), and float32 sums."""


def close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> bool:
    difference = (found.double().cpu() - wanted.double().cpu()).abs()
    return bool((difference <= RELATIVE[dtype] * wanted.double().cpu().abs().clamp_min(0.1)).all())


@pytest.mark.parametrize(("rows", "size", "dtype"), [(1, 8, F32), (3, 60, F32), (2, 576, BF16), (2, 96, F16)])
def test_rms_norm(rows: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    x = (torch.randn(rows, size) * 3).to(dtype).to(DEVICE)
    weight = torch.randn(size).to(dtype).to(DEVICE)
    wide = x.double()
    wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-3) * weight.double()
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, 1e-3, out)
    assert close(out, wanted, dtype)
    assert torch.equal(x, wide.to(dtype))
    rms_norm(x, weight, 1e-3, x)  # in place
    assert torch.equal(x, out)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_rms_norm_adds_into_the_residual(dtype: torch.dtype) -> None:
    torch.manual_seed(1)
    x, residual = (torch.randn(3, 48).to(dtype).to(DEVICE) for _ in range(2))
    weight, total = torch.randn(48).to(dtype).to(DEVICE), x.double() + residual.double()
    out = torch.full_like(x, float("nan"))
    rms_norm(x, weight, 1e-6, out, residual)
    assert close(residual, total, dtype)
    kept = residual.double()
    assert close(
        out, kept * torch.rsqrt(kept.square().mean(-1, keepdim=True) + 1e-6) * weight.double(), dtype
    )


@pytest.mark.parametrize(
    ("rows", "size", "dtype"), [(1, 1, F32), (3, 52, F32), (2, 1030, F16), (2, 64, BF16)]
)
def test_silu_and_mul(rows: int, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(size)
    x = (torch.randn(rows, 2 * size) * 4).to(dtype).to(DEVICE)
    out = torch.full((rows, size), float("nan"), dtype=dtype, device=DEVICE)
    silu_and_mul(x, out)
    gate, up = x.double().chunk(2, dim=-1)
    assert close(out, gate * torch.sigmoid(gate) * up, dtype)


def test_nothing_is_launched_for_no_rows() -> None:
    empty = torch.empty(0, 8, device=DEVICE)
    rms_norm(empty, torch.ones(8, device=DEVICE), 1e-6, empty)
    silu_and_mul(torch.empty(0, 16, device=DEVICE), empty)


@pytest.mark.parametrize(
    ("heads", "head_size", "block_size", "dtype", "norm"),
    [
        ((1, 1), 64, 16, F32, False),
        ((4, 2), 80, 4, F32, True),
        ((9, 3), 8, 1, BF16, False),
        ((3, 1), 128, 32, F16, True),
    ],
)
@pytest.mark.parametrize("fp8", [False, True])
def test_rope_and_cache(
    heads: tuple[int, int], head_size: int, block_size: int, dtype: torch.dtype, norm: bool, fp8: bool
) -> None:
    torch.manual_seed(head_size)
    num_heads, kv_heads = heads
    q_size, kv_size = num_heads * head_size, kv_heads * head_size
    blocks = 6
    positions = torch.tensor([0, 5, 37, 2])
    slots = torch.tensor([3, -1, (blocks - 1) * block_size, block_size])
    cos, sin = rope_cos_sin(tiny_config(head_size, num_heads, kv_heads), 64)
    qkv = torch.randn(4, q_size + 2 * kv_size).to(dtype).to(DEVICE)
    before = qkv.double().cpu()
    weights = [torch.randn(head_size).to(dtype).to(DEVICE) for _ in range(2)] if norm else [None, None]
    scales = [(torch.rand(kv_heads) + 0.5).to(DEVICE) for _ in range(2)]
    shape = (blocks, kv_heads, block_size, head_size)
    poison = (
        torch.full(shape, 0x55, dtype=torch.uint8) if fp8 else torch.full(shape, float("nan"), dtype=dtype)
    )
    caches = [poison.clone().to(DEVICE) for _ in range(2)]
    query = qkv[:, :q_size].view(4, num_heads, head_size)
    rope_and_cache(
        qkv, positions.to(DEVICE), slots.to(DEVICE), cos.to(DEVICE), sin.to(DEVICE), query, *caches,
        q_norm=weights[0], k_norm=weights[1], eps=1e-5, k_scale=scales[0], v_scale=scales[1],
    )  # fmt: skip

    def turned(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        x = x.view(4, -1, head_size)
        if weight is not None:
            x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight.double().cpu()
        return apply_rope(x, cos[positions].double(), sin[positions].double())

    assert close(query, turned(before[:, :q_size], weights[0]), dtype)
    assert torch.equal(qkv.double().cpu()[:, q_size:], before[:, q_size:])  # only queries turn in place
    key = turned(before[:, q_size : q_size + kv_size], weights[1])
    value = before[:, q_size + kv_size :].view(4, kv_heads, head_size)
    written = [0, 2, 3]
    for cache, new, scale in zip(caches, (key, value), scales, strict=True):
        lines = cache.cpu().transpose(1, 2).reshape(-1, kv_heads, head_size)
        found = lines[slots[written]]
        if fp8:
            wanted = new[written] / scale.double().cpu()[:, None]
            codes = found.view(torch.float8_e4m3fn).double()
            # To nearest: within half of the code's step, 2⁻⁴ of its size or 2⁻¹⁰ among the subnormals.
            assert ((codes - wanted).abs() <= wanted.abs() * 0.0626 + 2.0**-10 + 1e-6).all()
        else:
            assert close(found, new[written], dtype)
        untouched = torch.ones(len(lines), dtype=torch.bool)
        untouched[slots[written]] = False
        left = poison.transpose(1, 2).reshape(-1, kv_heads, head_size)[untouched]
        assert torch.equal(lines[untouched].view(torch.uint8), left.contiguous().view(torch.uint8))


@triton.jit
def _codes(values_ptr, codes_ptr, back_ptr, BLOCK: tl.constexpr, FP8: tl.constexpr):  # noqa: N803
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    code = encode_e4m3(tl.load(values_ptr + place), FP8)
    tl.store(codes_ptr + place, code)
    tl.store(back_ptr + place, decode_e4m3(code, FP8))


def codes(values: torch.Tensor, fp8: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes of ``values`` float32 [N], what they are read back as), N a power of two."""
    values = values.to(DEVICE)
    coded, back = torch.empty_like(values, dtype=torch.uint8), torch.empty_like(values)
    _codes[(1,)](values, coded, back, values.numel(), fp8)
    return coded.cpu(), back.cpu()


def test_software_e4m3_is_torchs() -> None:
    # Every bfloat16 that isn't a NaN, and the points half way between neighbouring codes.
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(BF16).float()
    finite = torch.arange(255, dtype=torch.uint8)[:127].view(torch.float8_e4m3fn).float()
    ties = (finite[1:] + finite[:-1]) / 2
    values = torch.where(every.isnan(), 0.0, every)
    values[: len(ties)] = ties
    values[len(ties) : 2 * len(ties)] = -ties
    coded, back = codes(values, FP8_SOFTWARE)
    wanted = values.clamp(-448, 448).to(torch.float8_e4m3fn)
    assert torch.equal(coded, wanted.view(torch.uint8))
    assert torch.equal(back, wanted.float())
    assert len(set(coded.tolist())) == 254


def test_software_e4m3_marks_nan() -> None:
    coded, _ = codes(torch.tensor([float("nan"), 1.0]), FP8_SOFTWARE)
    assert coded.tolist() == [0x7F, 0x38]
