"""The gated silu in C: one pass, float32 inside, rows split over threads."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64
from typing import Any

import torch

from atom_kernels.activation.contract import GatedActivationProblem
from atom_kernels.activation.names import Activation
from atom_kernels.dtypes import why_not_dtype
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_SIGNATURES = {f"silu_and_mul_{suffix}": "ppll" for suffix in _SUFFIXES.values()}


def _supports(problem: GatedActivationProblem, platform: Any) -> str | None:
    if problem.activation != Activation.SILU:
        return f"computes silu, not {problem.activation}"
    return why_not_dtype(problem.dtype, _SUFFIXES) or native_unavailable("activation")


def _bind(problem: GatedActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    function = getattr(load_native("activation", _SIGNATURES), f"silu_and_mul_{_SUFFIXES[problem.dtype]}")
    size, c_size = problem.intermediate_size, c_int64(problem.intermediate_size)
    dtype, width = problem.dtype, 2 * size

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != width:
            problem.check_input(x)
        if not x.is_contiguous():
            x = x.contiguous()
        num_rows = x.numel() // (2 * size)
        out = x.new_empty(num_rows, size)
        function(x.data_ptr(), out.data_ptr(), num_rows, c_size)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], size)

    return run


GATED_BACKEND = Backend(name="native", implementation="C silu_and_mul", supports=_supports, bind=_bind)
