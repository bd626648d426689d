"""Products of heads in MXFP4 on AITER, MI355X alone: the kernel rounds rows as it reads them, each 32 inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.batched_gemm import Product, of_some_rows
from atom_kernels.aiter.library import library
from atom_kernels.formats import Mxfp4
from atom_kernels.operator import Backend, WeightLayout
from atom_kernels.platform import Platform

if TYPE_CHECKING:
    from atom_kernels.head_product.contract import HeadProductProblem

# The release on PyPI has the second alone, which writes what its caller allocated.
_FUNCTION, _INTO = "batched_gemm_a16wfp4", "batched_gemm_afp4wfp4_pre_quant"
_BLOCK = 32
_LEAST_INPUTS = 128


def _supports(problem: HeadProductProblem, platform: Platform) -> str | None:
    if problem.rounded_to != "mxfp4":
        return f"rounds heads to mxfp4, not to {problem.rounded_to}"
    if platform.arch != "gfx950":
        return f"{platform.arch} multiplies no mxfp4"
    if problem.dtype != torch.bfloat16:
        return f"takes and gives bfloat16, not {problem.dtype}"
    size = problem.in_features
    if size < _LEAST_INPUTS or size & (size - 1):
        # Its tiles are powers of two, and of an incomplete one it reads the first half alone.
        return f"multiplies {_LEAST_INPUTS}, 256 and further powers of two of inputs, not {size}"
    if platform.batch_invariant:
        return "its tiles, and so a row's sums, are chosen by the number of rows"
    api = api_of(platform)
    return None if api.has(_FUNCTION) else api.why_not(_INTO)


def _pack(problem: HeadProductProblem, weights: Any) -> dict[str, torch.Tensor | None]:
    weight_HNK = weights["weight"]
    parts = Mxfp4().quantize(weight_HNK.flatten(0, 1))
    return {name: part.view(*weight_HNK.shape[:2], -1) for name, part in parts.items()}


def _num_bytes(problem: HeadProductProblem, source_bytes: int) -> int:
    count = source_bytes // problem.dtype.itemsize
    return count // 2 + count // _BLOCK


def _bind(problem: HeadProductProblem, weights: Any) -> Product:
    aiter, dtype, outputs = library(), problem.dtype, problem.out_features
    fixed = {"w": weights["weight"], "w_scales": weights["scale"], "dtype": dtype}
    if aiter.api.has(_FUNCTION):
        multiply = aiter.bind("batched_gemm_a16wfp4", "x", transpose_bm=True, prequant=True, **fixed)
        return of_some_rows(problem, lambda x_THK: multiply(x_THK.transpose(0, 1)))
    into = aiter.bind("batched_gemm_afp4wfp4_pre_quant", "x", "y", **fixed)

    def run(x_THK: torch.Tensor) -> torch.Tensor:
        out_THN = x_THK.new_empty((*x_THK.shape[:2], outputs))
        into(x_THK.transpose(0, 1), out_THN.transpose(0, 1))
        return out_THN

    return of_some_rows(problem, run)


BACKEND = Backend(
    name="aiter",
    implementation="AITER batched product in MXFP4, rows rounded, each 32 inputs",
    supports=_supports,
    bind=_bind,
    layout=WeightLayout("mxfp4_by_head", _pack, _num_bytes),
)
