"""Norm and rotation against float64."""

from __future__ import annotations

import pytest
import torch

from engine.kernels.cpu.build import InstructionSet
from engine.kernels.cpu.units import native_rms_norm, native_rotate
from engine.models.config import RopeScaling
from engine.models.rope import apply_rope, rope_cos_sin
from tests.helpers.random_models import tiny_config
from tests.kernels_cpu.models import DTYPES, supported_isas


def norm64(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    return wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.double()


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 15, 16, 60, 576])
def test_rms_norm(size: int, dtype: torch.dtype, isa: InstructionSet) -> None:
    random = torch.Generator().manual_seed(size)
    x = torch.randn(5, size, generator=random) * torch.tensor([[1e-3], [1.0], [30.0], [1e4], [0.0]])
    weight = torch.randn(size, generator=random)
    out = native_rms_norm(x, weight, 1e-5, dtype, isa)
    tolerance = 2e-6 if dtype == torch.float32 else 2**-8
    assert torch.isfinite(out).all()
    torch.testing.assert_close(out.double(), norm64(x, weight, 1e-5), rtol=tolerance, atol=1e-12)


@pytest.mark.parametrize("isa", supported_isas())
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("head_size", [2, 8, 32, 64, 80, 96, 128])
def test_rotation(head_size: int, normalised: bool, isa: InstructionSet) -> None:
    random = torch.Generator().manual_seed(head_size)
    config = tiny_config(head_size, 2, 1)
    cos, sin = rope_cos_sin(config, 1000)
    positions = torch.tensor([0, 1, 17, 999])
    x = torch.randn(4, head_size, generator=random)
    norm = torch.randn(head_size, generator=random) if normalised else None
    before = norm64(x, norm, 1e-6) if norm is not None else x.double()
    wanted = apply_rope(before.unsqueeze(1), cos[positions].double(), sin[positions].double())[:, 0]
    actual = native_rotate(x, positions, cos, sin, norm, 1e-6, isa)
    torch.testing.assert_close(actual.double(), wanted, rtol=1e-5, atol=2e-6)


def test_scaled_rope_tables_reach_the_rotation() -> None:
    from dataclasses import replace

    plain = tiny_config(16, 2, 1)
    scaled = replace(plain, rope_scaling=RopeScaling("linear", 4.0))
    x = torch.ones(1, 16)
    at_eight = native_rotate(x, torch.tensor([8]), *rope_cos_sin(scaled, 10))
    at_two = native_rotate(x, torch.tensor([2]), *rope_cos_sin(plain, 10))
    torch.testing.assert_close(at_eight, at_two)
