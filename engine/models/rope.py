"""Rotary position embedding: frequencies of every supported scaling, and the cos/sin table.

RoPE: Su et al., "RoFormer", 2021 (arXiv:2104.09864); layout "neox": halves are rotated, not pairs. The
``llama3`` scaling follows Meta's Llama 3.1 reference: long wavelengths are divided by ``factor``, short ones
kept, those between blended.
"""

from __future__ import annotations

import math

import torch

from engine.models.config import ModelConfig, RopeScaling


def inverse_frequencies(config: ModelConfig) -> torch.Tensor:
    """Radians per position, float32 ``[head_size / 2]``, scaling applied."""
    exponents = torch.arange(0, config.head_size, 2, dtype=torch.int64).float() / config.head_size
    frequencies = 1.0 / (config.rope_theta**exponents)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "freq_factors":
        return frequencies / torch.tensor(scaling.freq_factors, dtype=torch.float32)
    return _llama3(frequencies, scaling)


def _llama3(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    context = scaling.original_max_position_embeddings
    low_wavelength = context / scaling.low_freq_factor
    high_wavelength = context / scaling.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    slow = frequencies / scaling.factor
    smooth = (context / wavelengths - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    blended = (1 - smooth) * slow + smooth * frequencies
    scaled = torch.where(wavelengths > low_wavelength, slow, blended)
    return torch.where(wavelengths < high_wavelength, frequencies, scaled)


def rope_cos_sin(config: ModelConfig, num_positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """``cos`` and ``sin`` of every position, each float32 ``[num_positions, head_size / 2]``."""
    angles = torch.outer(torch.arange(num_positions, dtype=torch.float32), inverse_frequencies(config))
    return angles.cos(), angles.sin()


def apply_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotate ``x`` [T, heads, D] by ``cos``/``sin`` [T, D/2] (halves layout)."""
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
