"""Packed matrix products against float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from engine.kernels.cpu.build import InstructionSet
from engine.kernels.cpu.units import NativeLinear
from tests.kernels_cpu.models import DTYPES, supported_isas

# m, n, k: single rows, tiles with every remainder, the many-rows path, sizes below a panel and odd.
SHAPES = [
    (1, 1, 2),
    (1, 96, 64),
    (3, 33, 7),
    (5, 31, 10),
    (7, 101, 60),
    (13, 64, 128),
    (64, 48, 31),
    (130, 160, 50),
]


def random_case(
    m: int, n: int, k: int, dtype: torch.dtype, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(m, k, generator=random)
    weight = torch.randn(n, k, generator=random) / k**0.5
    return x.to(dtype), weight.to(dtype), torch.randn(n, generator=random).to(dtype)


def assert_near(actual: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert actual.shape == wanted.shape
    error = (actual.double() - wanted).abs() / (1 + wanted.abs())
    assert torch.isfinite(actual).all()
    assert error.max().item() < tolerance


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n", "k"), SHAPES)
def test_product_with_bias_is_exact_to_rounding(
    m: int, n: int, k: int, dtype: torch.dtype, isa: InstructionSet
) -> None:
    x, weight, bias = random_case(m, n, k, dtype)
    wanted = F.linear(x.double(), weight.double(), bias.double())
    # Inputs are exact in both dtypes and sums are float32, so bfloat16 is held to the same tolerance.
    assert_near(NativeLinear(weight, bias, num_threads=2, isa=isa)(x), wanted, 2e-6)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "half", "k"), [(1, 1, 2), (4, 17, 33), (9, 52, 60), (70, 40, 24)])
def test_gated_silu(m: int, half: int, k: int, dtype: torch.dtype, isa: InstructionSet) -> None:
    x, weight, _ = random_case(m, 2 * half, k, dtype)
    x = x * 4
    gate, up = F.linear(x.double(), weight.double()).chunk(2, dim=-1)
    # Gates go up to 16: an error of the product counts that much in the output.
    tolerance = 1e-5 if dtype == torch.float32 else 2**-8
    assert_near(NativeLinear(weight, gated=True, num_threads=2, isa=isa)(x), F.silu(gate) * up, tolerance)


def test_silu_of_extreme_gates_is_finite() -> None:
    gates = torch.tensor([-1e4, -100.0, -88.5, 0.0, 88.5, 100.0, 1e4])
    weight = torch.stack([gates, torch.ones(7)]).reshape(-1, 1).contiguous()
    out = NativeLinear(weight, gated=True)(torch.ones(1, 1))
    assert_near(out[0], F.silu(gates.double()), 1e-6)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 6, 7, 65])
def test_int8_is_the_product_with_rounded_weights(m: int, dtype: torch.dtype, isa: InstructionSet) -> None:
    x, weight, bias = random_case(m, 70, 44, dtype)
    scale = weight.double().abs().amax(dim=1, keepdim=True) / 127
    rounded = (weight.double() / scale).round() * scale
    assert (rounded - weight.double()).abs().max() > 1e-4  # it does lose something
    native = NativeLinear(weight, bias, int8=True, num_threads=2, isa=isa)
    # A weight that lies within rounding of a tie may go to the other side: one step of the scale.
    step = (x.double().abs().amax() * scale.max()).item()
    wanted = F.linear(x.double(), rounded, bias.double())
    errors = (native(x).double() - wanted).abs()
    assert errors.max().item() < 1.01 * step
    assert (errors > 1e-4).double().mean().item() < 0.2


def test_int8_of_a_zero_row_is_zero() -> None:
    weight = torch.zeros(4, 8)
    weight[1, 3] = 2.0
    out = NativeLinear(weight, int8=True)(torch.ones(1, 8))
    torch.testing.assert_close(out, torch.tensor([[0.0, 2.0, 0.0, 0.0]]))


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_is_the_same_bits_in_every_batch(dtype: torch.dtype, int8: bool) -> None:
    x, weight, bias = random_case(200, 130, 96, dtype)
    native = NativeLinear(weight, bias, int8=int8, num_threads=2)
    whole = native(x)
    for begin, end in [(0, 1), (5, 11), (40, 104), (3, 199)]:
        assert torch.equal(native(x[begin:end].contiguous()), whole[begin:end])
