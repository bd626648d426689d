"""silu_and_mul in C: one pass, float32 inside, rows split over threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.activation.contract import GatedActivationProblem
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
_SIGNATURES = {f"silu_and_mul_{suffix}": "ppll" for suffix in _SUFFIXES.values()}


def _supports(problem: GatedActivationProblem, platform: Any) -> str | None:
    if problem.dtype not in _SUFFIXES:
        return f"written for float32 and bfloat16, not {problem.dtype}"
    return native_unavailable("activation")


def _bind(problem: GatedActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    function = getattr(load_native("activation", _SIGNATURES), f"silu_and_mul_{_SUFFIXES[problem.dtype]}")
    size, dtype = problem.intermediate_size, problem.dtype

    def run(x: torch.Tensor) -> torch.Tensor:
        shape = x.shape
        if x.dtype is not dtype or shape[-1] != 2 * size:
            raise TypeError(f"silu_and_mul was planned for [..., {2 * size}] {dtype}, got {list(shape)} {x.dtype}")
        if not x.is_contiguous():
            x = x.contiguous()
        out = x.new_empty((*shape[:-1], size))
        function(x.data_ptr(), out.data_ptr(), out.numel() // size, size)
        return out

    return run


SILU_AND_MUL_BACKEND = Backend(name="native", implementation="C silu_and_mul", supports=_supports, bind=_bind)
