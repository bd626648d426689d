"""Sums over ranks whose residual's addition, norm and rounding to float8 AITER computes in the same kernel.

Rows have a scale each, or one for each group of 128, in AITER from git.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.all_reduce import NORMED_GROUP_SIZES, ONE_STAGE_BYTES, max_rows_of, memory_for, memory_of
from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.norm import rows_of
from atom_kernels.aiter.quantized.linears import HALVES, aligned
from atom_kernels.operator import Backend
from atom_kernels.rounded_rows import empty_rows

if TYPE_CHECKING:
    from atom_kernels.platform import Platform
    from atom_kernels.reduce.rounded import RoundedAllReduceNormProblem

_ROWS, _GROUPS = "fused_allreduce_rmsnorm_quant", "fused_allreduce_rmsnorm_quant_per_group"
_GROUP = 128
# Threads of 8 elements each norm a row: they add up by 32, and 1024 are the most.
_MULTIPLE, _LONGEST = 256, 8192


def _supports(problem: RoundedAllReduceNormProblem, platform: Platform) -> str | None:
    memory, norm, rounding = memory_of(problem), problem.norm, problem.rounding
    function = _ROWS if rounding.group is None else _GROUPS
    if isinstance(memory, str):
        return memory
    if memory.size not in NORMED_GROUP_SIZES:
        return f"{function} is written for {', '.join(map(str, NORMED_GROUP_SIZES))} ranks, not {memory.size}"
    if norm.dtype not in HALVES:
        return f"{function} is called for bfloat16 and float16, not {norm.dtype}"
    if rounding.group not in (None, _GROUP):
        return f"rounds whole rows and groups of {_GROUP}, not of {rounding.group}"
    if norm.hidden_size % _MULTIPLE or norm.hidden_size > _LONGEST:
        return f"{function} norms rows of whole {_MULTIPLE} elements up to {_LONGEST}, not {norm.hidden_size}"
    if norm.weight_offset:
        return f"{function} is called for the weight as it is, not for weight + {norm.weight_offset:g}"
    # Older ones, which lack this parameter, know four sizes of rows and leave others unwritten.
    asked = "gemma_norm" if rounding.group is None else "transpose_scale"
    return api_of(platform).why_not(function, asked)


def _bind(
    problem: RoundedAllReduceNormProblem, weights: Any
) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]:
    memory, norm, rounding = memory_for(problem), problem.norm, problem.rounding
    fixed = {
        "w": weights["weight"].contiguous(),
        "eps": norm.eps,
        "reg_ptr": memory.buffer,
        "reg_bytes": memory.max_bytes,
    }
    varying = ("_fa", "inp", "res_inp", "res_out", "out", "scale_out", "use_1stage")
    if rounding.group is None:
        reduce = library().bind(_ROWS, *varying, **fixed)
    else:
        fixed |= {"group_size": rounding.group, "transpose_scale": rounding.by_column}
        reduce = library().bind(_GROUPS, *varying, **fixed)
    name = "all_reduce_rounded_add_rms_norm"

    def run(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, others = (aligned(rows_of(one, norm.hidden_size, norm.dtype, name)) for one in (x, residual))
        if rows.shape != others.shape:
            raise TypeError(f"{name} was given {list(x.shape)} and a residual {list(residual.shape)}")
        codes, scale = empty_rows(rows, norm.hidden_size, rounding)
        total = torch.empty_like(rows)
        if rows.shape[0]:
            reduce(memory.group, rows, others, total, codes, scale, rows.nbytes <= ONE_STAGE_BYTES)
        return codes, scale, total

    return run


SUM_ROUNDED_NORM = Backend(
    name="aiter",
    implementation=f"AITER {_ROWS}",
    supports=_supports,
    bind=_bind,
    max_rows=partial(max_rows_of, spare=1),
)
