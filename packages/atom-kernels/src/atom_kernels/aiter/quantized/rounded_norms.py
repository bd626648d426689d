"""RMS norms that round their rows to float8 in the same kernel, with the residual's addition and without.

Each row has a scale in both releases, and groups of 128 in sources from git.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.norm import rows_of
from atom_kernels.aiter.quantized.linears import ALIGNED, HALVES, aligned
from atom_kernels.operator import Backend
from atom_kernels.rounded_rows import empty_rows

if TYPE_CHECKING:
    from atom_kernels.norm.rounded import RoundedNormProblem
    from atom_kernels.platform import Platform

_NORM, _ADD_NORM = "rmsnorm2d_fwd_with_dynamicquant", "rmsnorm2d_fwd_with_add_dynamicquant"
_GROUP = 128
# The longest row of the kernel that rounds groups, and of Composable Kernel's.
_LONGEST = 8192


def _why_not(problem: RoundedNormProblem, platform: Platform, function: str) -> str | None:
    norm, group, api = problem.norm, problem.rounding.group, api_of(platform)
    if norm.weight_offset:
        return f"{function} multiplies with the weight as it is, not with weight + {norm.weight_offset:g}"
    if norm.dtype not in HALVES:
        return f"{function} is called for bfloat16 and float16, not {norm.dtype}"
    if group not in (None, _GROUP):
        return f"{function} is called for whole rows and groups of {_GROUP}, not of {group}"
    multiple = group or ALIGNED // norm.dtype.itemsize
    if norm.hidden_size % multiple:
        return f"{function} takes rows of whole {multiple} elements, not {norm.hidden_size}"
    if (group is not None or api.release == "pypi") and norm.hidden_size > _LONGEST:
        return f"{function} takes rows of {_LONGEST} elements at most, not {norm.hidden_size}"
    return api.why_not(function, *(() if group is None else ("group_size", "shuffle_scale")))


def _bind(problem: RoundedNormProblem, weights: Any) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    size, dtype = problem.norm.hidden_size, problem.norm.dtype
    norm = _bound(problem, weights, _NORM, "out", "input", "yscale")

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows = aligned(rows_of(x, size, dtype, "rounded_rms_norm"))
        codes, scale = empty_rows(rows, size, problem.rounding)
        if rows.shape[0]:
            norm(codes, rows, scale)
        return codes, scale

    return run


def _bind_add(
    problem: RoundedNormProblem, weights: Any
) -> Callable[[torch.Tensor, torch.Tensor], tuple[torch.Tensor, ...]]:
    size, dtype = problem.norm.hidden_size, problem.norm.dtype
    norm = _bound(problem, weights, _ADD_NORM, "out", "input", "residual_in", "residual_out", "yscale")

    def run(x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        rows, others = (aligned(rows_of(one, size, dtype, "rounded_add_rms_norm")) for one in (x, residual))
        if rows.shape != others.shape:
            raise TypeError(f"rounded_add_rms_norm was given {list(x.shape)} and a residual {list(residual.shape)}")
        codes, scale = empty_rows(rows, size, problem.rounding)
        total = torch.empty_like(rows)
        if rows.shape[0]:
            norm(codes, rows, others, total, scale)
        return codes, scale, total

    return run


def _bound(problem: RoundedNormProblem, weights: Any, function: str, *varying: str) -> Callable[..., None]:
    return library().bind(
        function,
        *varying,
        weight=weights["weight"].contiguous(),
        epsilon=problem.norm.eps,
        group_size=problem.rounding.group or 0,
        shuffle_scale=problem.rounding.by_column and problem.rounding.group is not None,
    )


NORM = Backend(
    name="aiter",
    implementation=f"AITER {_NORM}",
    supports=lambda problem, platform: _why_not(problem, platform, _NORM),
    bind=_bind,
)
ADD_NORM = Backend(
    name="aiter",
    implementation=f"AITER {_ADD_NORM}",
    supports=lambda problem, platform: _why_not(problem, platform, _ADD_NORM),
    bind=_bind_add,
)
