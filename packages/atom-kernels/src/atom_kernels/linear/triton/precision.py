"""How Triton kernels multiply rows of a dtype with weights."""

from __future__ import annotations

import torch

from atom_kernels.settings import triton_interpret


def precision_of(dtype: torch.dtype, *, is_packed: bool) -> str:
    """`PRECISION` of the kernels: "ieee" in float32, "tf32" as tensor cores do; "pairs" decodes two weights at a time.

    Args:
        dtype: the dtype of the rows.
        is_packed: weights are codes of a format.
    """
    from atom_kernels.triton.support import has_dependent_launch

    # Triton's interpreter has no products of bfloat16.
    if dtype is torch.float32 or triton_interpret():
        return "ieee"
    return "pairs" if is_packed and dtype is torch.bfloat16 and has_dependent_launch() else "tf32"
