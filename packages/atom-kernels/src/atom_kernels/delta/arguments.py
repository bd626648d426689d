"""What kernels in C and in Triton ask of the tensors that they are called with."""

from __future__ import annotations

import torch


def packed_indices(*indices: torch.Tensor) -> list[torch.Tensor]:
    """Slots and lengths as contiguous int32: what already is so is not copied."""
    return [index.int().contiguous() for index in indices]


def check_written(dtype: torch.dtype, **tensors: torch.Tensor) -> None:
    """Raises ValueError for a tensor that a kernel cannot write in place."""
    for name, tensor in tensors.items():
        if tensor.dtype is not dtype or not tensor.is_contiguous():
            raise ValueError(f"{name} is written in place and must be contiguous {dtype}, not {tensor.dtype}")
