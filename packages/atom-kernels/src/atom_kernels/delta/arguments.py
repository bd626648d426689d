"""What kernels in C and in Triton ask of the tensors that they are called with."""

from __future__ import annotations

import torch

from atom_kernels.dtypes import unplanned


def packed_indices(*indices: torch.Tensor) -> list[torch.Tensor]:
    """Slots and lengths as contiguous int32: what already is so is not copied."""
    return [index.int().contiguous() for index in indices]


def with_rows(x: torch.Tensor) -> torch.Tensor:
    """x ``[T, C]`` with the elements of a row side by side: rows may be apart, as parts of wider ones are."""
    return x if x.stride(1) == 1 else x.contiguous()


def check_rows(operator: str, dtype: torch.dtype, *rows: tuple[torch.Tensor, int]) -> None:
    """Raises TypeError for a tensor whose rows are not of `dtype`, or have another size than the one beside it."""
    for x, size in rows:
        if x.dtype is not dtype or x.shape[-1] != size:
            raise unplanned(operator, x, size, dtype)


def check_slots(dtype: torch.dtype, states: torch.Tensor) -> int:
    """Elements from one slot to the next: they may be apart, as where a host keeps more between them.

    Raises:
        ValueError: a kernel cannot write a slot of `states` in place.
    """
    if states.dtype is not dtype or not (states.is_contiguous() or states[:1].squeeze(0).is_contiguous()):
        raise ValueError(
            f"states are written in place, and each slot must be contiguous {dtype}, not {states.dtype} of strides "
            f"{states.stride()}"
        )
    return states.stride(0)


def check_written(dtype: torch.dtype, **tensors: torch.Tensor) -> None:
    """Raises ValueError for a tensor that a kernel cannot write in place."""
    for name, tensor in tensors.items():
        if tensor.dtype is not dtype or not tensor.is_contiguous():
            raise ValueError(f"{name} is written in place and must be contiguous {dtype}, not {tensor.dtype}")
