"""Rotary position embedding, with the frequency scalings of Llama models."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kvstore.connector.decoder.config import ModelConfig, RopeScaling


def frequencies(config: ModelConfig) -> Tensor:
    """Angle a position, float32, shape (head_dim / 2,)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.int64).float() / config.head_dim
    plain = 1.0 / (config.rope_theta**exponents)
    if config.rope.kind == "linear":
        return plain / config.rope.factor
    return _llama3(plain, config.rope) if config.rope.kind == "llama3" else plain


def _llama3(plain: Tensor, rope: RopeScaling) -> Tensor:
    """Long wavelengths are stretched, short ones kept, those between blended."""
    wavelength = 2 * math.pi / plain
    longest, shortest = rope.original_positions / rope.low_freq_factor, rope.original_positions / rope.high_freq_factor
    stretched = torch.where(wavelength > longest, plain / rope.factor, plain)
    smooth = (rope.original_positions / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - smooth) * stretched / rope.factor + smooth * stretched
    between = (wavelength >= shortest) & (wavelength <= longest)
    return torch.where(between, blended, stretched)


def rotation(positions: Tensor, inverse: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosines and sines for ``positions`` (n,), each (n, 1, head_dim): the middle axis is for the heads."""
    angles = positions.float()[:, None] * inverse[None, :]
    angles = torch.cat((angles, angles), dim=-1)[:, None, :]
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Turns ``x`` (n, heads, head_dim) by its positions."""
    low, high = x.chunk(2, dim=-1)
    return x * cosines + torch.cat((-high, low), dim=-1) * sines
