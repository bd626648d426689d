"""What adapters add, in C: one call a linear, which reads the matrices of the places that occur, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.adapters.contract import LowRankProblem
from atom_kernels.adapters.matrices_in_c import MatricesInC
from atom_kernels.dtypes import why_not_dtype
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend

_SUFFIXES = {torch.float32: "f32", torch.bfloat16: "bf16"}
# By the dtypes of x and y.
_FUNCTIONS = {
    (torch.float32, torch.float32): "add_low_rank_f32_f32",
    (torch.bfloat16, torch.bfloat16): "add_low_rank_bf16_bf16",
    (torch.bfloat16, torch.float32): "add_low_rank_bf16_f32",
}
_SIGNATURES = dict.fromkeys(_FUNCTIONS.values(), "ppplllp")


def _supports(problem: LowRankProblem, platform: Any) -> str | None:
    return why_not_dtype(problem.dtype, _SUFFIXES) or native_unavailable("low_rank")


def _bind(problem: LowRankProblem, weights: Any) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    library, dtype = load_native("low_rank", _SIGNATURES), problem.dtype
    functions = {y: getattr(library, name) for (x, y), name in _FUNCTIONS.items() if x is dtype}
    matrices = MatricesInC(weights["a"].contiguous(), weights["b"].contiguous(), problem.parts)
    address = matrices.address

    planned = (problem.out_features, problem.in_features, 1)

    def run(y: torch.Tensor, x: torch.Tensor, places: torch.Tensor, _keep_alive: Any = matrices) -> None:
        if x.dtype is not dtype or y.dtype not in functions or (y.shape[-1], x.shape[-1], y.stride(-1)) != planned:
            problem.check_inputs(y, x)
        if x.stride(-1) != 1:
            x = x.contiguous()
        where, strides = (y.data_ptr(), x.data_ptr(), places.data_ptr()), (y.stride(0), x.stride(0))
        add = functions[y.dtype]
        add(*where, len(x), *strides, address)

    return run


BACKEND = Backend(name="native", implementation="C products, tokens independent", supports=_supports, bind=_bind)
