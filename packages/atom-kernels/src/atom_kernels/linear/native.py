"""Linear in C: reads the weight as it was loaded, and gives each row the same bits whatever its batch."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_int64, c_void_p
from typing import Any

import torch

from atom_kernels.adapters.contract import LowRankTerm
from atom_kernels.dtypes import unplanned, why_not_dtype
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.native import load_native, native_unavailable
from atom_kernels.operator import Backend

# bfloat16 rows this long leave the caches once there are many; oneDNN cuts them up further than this kernel does.
_LONG = 2048
_FEW_ROWS = 32
# A kernel reads the matrices of an adapter for each of its rows; products by adapter read them once.
_MOST_ROWS_WITH_TERM = 64

# By the dtypes of input and result.
_FUNCTIONS = {
    (torch.float32, torch.float32): "linear_f32",
    (torch.bfloat16, torch.bfloat16): "linear_bf16",
    (torch.bfloat16, torch.float32): "linear_bf16_f32",
}
_HAS_BF16 = {"has_linear_bf16": "->l"}


def _supports(problem: LinearProblem, platform: Any) -> str | None:
    if (reason := problem.why_not_plain()) is not None:
        return reason
    bfloat16 = problem.dtype == torch.bfloat16
    if problem.result_dtype == torch.bfloat16 and "amx_bf16" in platform.cpu_features:
        return "layouts that are packed for amx_bf16 serve any number of rows from one copy"
    reason = why_not_dtype(problem.dtype, (torch.float32, torch.bfloat16)) or native_unavailable("linear")
    if reason is None and bfloat16 and not load_native("linear", _HAS_BF16).has_linear_bf16():
        return "written for CPUs with avx512_bf16"
    return reason


def _max_rows(problem: LinearProblem, platform: Any) -> int | None:
    # In float32 every row count: results that do not depend on the batch are worth more than the last percent.
    short = problem.in_features <= _LONG or problem.result_dtype == torch.float32
    return None if short else _FEW_ROWS


def _bind(problem: LinearProblem, weights: Any) -> Callable[..., torch.Tensor]:
    name = _FUNCTIONS[problem.dtype, problem.result_dtype]
    library = load_native("linear", {name: "pppplll", f"adapted_{name}": "pppplllpp"})
    function, adapted = getattr(library, name), getattr(library, f"adapted_{name}")
    weight, bias = weights["weight"].contiguous(), weights["bias"]
    bias = None if bias is None else bias.contiguous()
    k, n, dtype, result_dtype = problem.in_features, problem.out_features, problem.dtype, problem.result_dtype
    # Arguments that never change are converted for C once.
    weight_pointer, bias_pointer = c_void_p(weight.data_ptr()), c_void_p(None if bias is None else bias.data_ptr())
    c_k, c_n, kind = c_int64(k), c_int64(n), (k, n, dtype)

    def run(x: torch.Tensor, low_rank: LowRankTerm | None = None, _keep_alive: Any = (weight, bias)) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != k:
            raise unplanned("linear", x, k, dtype)
        if not x.is_contiguous():
            x = x.contiguous()
        num_rows = x.numel() // k
        out = torch.empty(num_rows, n, dtype=result_dtype)
        arguments = (x.data_ptr(), weight_pointer, bias_pointer, out.data_ptr(), num_rows, c_k, c_n)
        if low_rank is None:
            function(*arguments)
        else:
            matrices = low_rank.in_c
            if matrices is None or matrices.kind != kind:
                given = "no matrices for C" if matrices is None else f"adapters of {matrices.kind}"
                raise TypeError(f"a linear of inputs, outputs and dtype {kind} was given {given}")
            adapted(*arguments, low_rank.places_T.data_ptr(), matrices.address)
        return out if x.dim() == 2 else out.view(*x.shape[:-1], n)

    return run


NATIVE_BACKEND = Backend(
    name="native",
    implementation="C dot products, rows independent",
    supports=_supports,
    bind=_bind,
    max_rows=_max_rows,
    most_rows_with_term=_MOST_ROWS_WITH_TERM,
)
