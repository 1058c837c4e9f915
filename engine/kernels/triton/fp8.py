"""e4m3fn in a cache of bytes: device functions that read and write it.

A cache element is value / scale, rounded to nearest even and saturated at ±448 (the format has no infinity).
The software path is exact for every one of the 254 finite codes. A NaN that is written is read back as NaN by
the native path, as ±480 by the software one.
"""

# ruff: noqa: N803, RET505  # constexpr names are capitals; a branch on a constexpr is an if of its own
# mypy: disable-error-code="no-untyped-def, untyped-decorator, attr-defined, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def decode_e4m3(code, FP8: tl.constexpr):
    """uint8 codes to float32 (native) or float16-exact values in float32 (software); scale not applied."""
    if FP8 == 1:
        return code.to(tl.float8e4nv, bitcast=True).to(tl.float32)
    else:
        # The same bits in float16's places stand for value · 2⁻⁸, subnormals included.
        wide = code.to(tl.uint16)
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        return bits.to(tl.float16, bitcast=True).to(tl.float32) * 256.0


@triton.jit
def load_cells(cells, held, FP8: tl.constexpr):
    """Elements of a KV cache at ``cells``, 0 where not ``held``; those of an fp8 cache decoded."""
    values = tl.load(cells, mask=held, other=0)
    if FP8 > 0:
        values = decode_e4m3(values, FP8)
    return values


@triton.jit
def encode_e4m3(value, FP8: tl.constexpr):
    """float32 values (scale divided out already) to uint8 codes."""
    limited = tl.minimum(tl.maximum(value, -448.0), 448.0)
    if FP8 == 1:
        return limited.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    else:
        bits = limited.to(tl.uint32, bitcast=True)
        magnitude = bits & 0x7FFFFFFF
        # Normal codes: drop 20 of 23 mantissa bits, to nearest even; the exponent's bias goes from 127 to 7.
        normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - 960
        # Below 2⁻⁶ codes are multiples of 2⁻⁹, which is the distance of floats just above 2¹⁴.
        shifted = magnitude.to(tl.float32, bitcast=True) + 16384.0
        subnormal = shifted.to(tl.uint32, bitcast=True) - 0x46800000
        code = tl.where(magnitude >= 0x3C800000, normal, subnormal)
        code = tl.where(value == value, code, 0x7F)
        return (code | ((bits >> 24) & 0x80)).to(tl.uint8)
