"""The scales of numbers that are cached in float8; `CacheFormat` is a protocol that every host knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_kernels.protocols.cache_format import (
    ALL_SCALES,
    HEAD_SCALES,
    NO_SCALES,
    TOKEN_SCALES,
    CacheFormat,
)

if TYPE_CHECKING:
    import torch

__all__ = ["ALL_SCALES", "HEAD_SCALES", "NO_SCALES", "SMALLEST_SCALE", "TOKEN_SCALES", "CacheFormat", "token_scales"]

# A token and head of zeros gets this scale.
SMALLEST_SCALE = 1e-6


def token_scales(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """float32 ``[..., 1]``: makes the largest number of each row the largest of `dtype`."""
    import torch

    largest = x.float().abs().amax(-1, keepdim=True)
    # On a GPU torch multiplies by the inverse of a plain number, which is not the same quotient.
    return (largest / torch.full_like(largest, torch.finfo(dtype).max)).clamp(min=SMALLEST_SCALE)
