"""Rows of activations rounded to fp8 on a GPU."""

from __future__ import annotations

import torch

from atom_kernels.triton.launch import launch


def rounded_rows(
    x: torch.Tensor,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    norm_offset: float = 0.0,
    *,
    group: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[T, K]``, normed first where there is a norm -> e4m3 [T, K] and float32 scales [T, groups].

    Args:
        group: inputs that share a scale, a power of two; None is a whole row.
    """
    from atom_kernels.linear.triton.convert import round_rows_kernel
    from atom_kernels.powers_of_two import power_of_two
    from atom_kernels.triton.support import dependent_launch

    if x.stride(1) != 1:
        x = x.contiguous()
    num_rows, size = x.shape
    codes = torch.empty(num_rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    block = power_of_two(size)
    group = min(group or block, block)
    scale = torch.empty(num_rows, -(-size // group), dtype=torch.float32, device=x.device)
    if num_rows:
        launch(
            round_rows_kernel, (num_rows,), x, norm_weight, codes, scale, x.stride(0), eps, norm_offset,
            SIZE=size, GROUP=group, BLOCK=block, num_warps=min(max(block // 512, 1), 16), **dependent_launch(),
        )  # fmt: skip
    return codes, scale
