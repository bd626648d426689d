"""Linears on AITER: the GEMM that looks up, by its shape, which of several libraries was fastest for it.

Heads that want float32 ask for it. A shape that nobody tuned is rounded to the dtype of the rows first, as torch does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.dtypes import unplanned
from atom_kernels.operator import Backend, Tolerance, WeightLayout
from atom_kernels.settings import aiter_shuffles_linears

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem
    from atom_kernels.platform import Platform

_HALVES = (torch.bfloat16, torch.float16)
_SHUFFLE = (16, 16)
# Tiles of the assembly kernel that a shuffled weight goes to on gfx950; on gfx942 hipBLASLt takes what can be shuffled.
_ASSEMBLY_TILE = 64


def _supports(problem: LinearProblem, platform: Platform) -> str | None:
    if (reason := problem.why_not_plain()) is not None:
        return reason
    if problem.dtype not in _HALVES:
        return f"the tuned GEMM is for bfloat16 and float16, not {problem.dtype}"
    if platform.batch_invariant:
        return "its kernel, and so a row's sums, are chosen by the number of rows"
    return api_of(platform).why_not("tgemm.mm")


def _supports_shuffled(problem: LinearProblem, platform: Platform) -> str | None:
    reason = _supports(problem, platform)
    if reason is not None:
        return reason
    if api_of(platform).release == "pypi":
        return "the tuned GEMM of the release on PyPI takes weights as they are"
    if problem.result_dtype != problem.dtype:
        return "heads keep the order of the table, which the embedding may share"
    if not aiter_shuffles_linears():
        return "no measurement shows that a shuffled weight is faster; ATOM_AITER_SHUFFLE_LINEAR=1 asks for it"
    inputs, outputs = problem.in_features, problem.weight_rows
    is_cut = not (inputs % _ASSEMBLY_TILE or outputs % _ASSEMBLY_TILE)
    if platform.arch == "gfx950" and (problem.dtype is not torch.bfloat16 or not is_cut):
        return f"on gfx950 shuffled weights are bfloat16 in tiles of {_ASSEMBLY_TILE}, not {outputs} x {inputs}"
    if outputs % 16 or inputs % 32:
        return f"only weights of 16 x 32 tiles can be shuffled, not {outputs} x {inputs}"
    return api_of(platform).why_not("shuffle_weight")


def _shuffle(problem: LinearProblem, weights: Any) -> Any:
    """The weight in the order of its tiles; the mark that AITER left on the tensor must not be lost by a copy."""
    return {**weights, "weight": library().bind("shuffle_weight", "x", layout=_SHUFFLE)(weights["weight"])}


def _bind(problem: LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    size, out_size, dtype, otype = problem.in_features, problem.out_features, problem.dtype, problem.result_dtype
    weight, bias = weights["weight"], weights["bias"]
    if not weight.is_contiguous():
        weight = weight.contiguous()
    multiply = library().bind("tgemm.mm", "inp", weights=weight, bias=bias, otype=otype)

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not dtype or x.shape[-1] != size:
            raise unplanned("linear", x, size, dtype)
        rows = x.reshape(-1, size).contiguous()
        if not rows.shape[0]:
            return x.new_empty((*x.shape[:-1], out_size), dtype=otype)
        return multiply(rows).view(*x.shape[:-1], out_size)

    return run


def _tolerance(problem: LinearProblem) -> Tolerance:
    """The tolerance of AITER's own tests (op_tests/test_gemm_a16w16.py), for values of order one."""
    return Tolerance(2e-2, 2e-2)


TUNED_BACKEND = Backend(
    name="aiter", implementation="AITER tuned GEMM", supports=_supports, bind=_bind, tolerance=_tolerance
)
SHUFFLED_BACKEND = Backend(
    name="aiter",
    implementation="AITER tuned GEMM, shuffled weight",
    supports=_supports_shuffled,
    bind=_bind,
    layout=WeightLayout("aiter_shuffled_16x16", pack=_shuffle),
    tolerance=_tolerance,
)
