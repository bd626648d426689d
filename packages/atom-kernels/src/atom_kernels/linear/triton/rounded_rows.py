"""Rows of activations rounded to fp8 on a GPU."""

from __future__ import annotations

import torch

from atom_kernels.formats import Codes, Float8
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.platform import Platform
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.triton.launch import launch


def multiplies_fp8(platform: Platform) -> bool:
    """Whether a GPU computes with fp8: NVIDIA's from sm_89 on."""
    return platform.vendor == "nvidia" and int(platform.arch.removeprefix("sm_")) >= 89


def may_round(problem: LinearProblem, platform: Platform) -> bool:
    """Whether rows may be rounded to fp8, with scales where those of the weight lie, and the GPU multiplies it."""
    held = problem.weight_format
    if held.codes is not Codes.E4M3 or problem.dtype is not torch.bfloat16 or not multiplies_fp8(platform):
        return False
    group = held.parts["scale"].columns
    return problem.input_format == Float8(1, group) and (group is None or group == power_of_two(group))


def rounded_rows(
    x: torch.Tensor,
    norm_weight: torch.Tensor | None = None,
    eps: float = 0.0,
    norm_offset: float = 0.0,
    *,
    group: int | None = None,
    multiple: int = 1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``[T, K]``, normed first where there is a norm -> e4m3 [T, K] and float32 scales [T, groups].

    Args:
        group: inputs that share a scale, a power of two; None is a whole row.
        multiple: rows of the result are made a multiple of it, of which those beyond x hold anything; the scales of a
            group then lie side by side, as cuBLAS has them.
    """
    from atom_kernels.linear.triton.convert import round_rows_kernel
    from atom_kernels.triton.support import dependent_launch

    if x.stride(1) != 1:
        x = x.contiguous()
    num_rows, size = x.shape
    all_rows = -(-num_rows // multiple) * multiple
    codes = torch.empty(all_rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    block = power_of_two(size)
    group = min(group or block, block)
    shape = (all_rows, -(-size // group))
    scale = torch.empty(shape if multiple == 1 else shape[::-1], dtype=torch.float32, device=x.device)
    scale = scale if multiple == 1 else scale.t()
    if num_rows:
        launch(
            round_rows_kernel, (num_rows,),
            x, norm_weight, codes, scale, x.stride(0), *scale.stride(), eps, norm_offset,
            SIZE=size, GROUP=group, BLOCK=block, num_warps=min(max(block // 512, 1), 16), **dependent_launch(),
        )  # fmt: skip
    return codes, scale
