"""The linear operator: plain or quantized weights, alone or with a norm before, an activation and a residual after."""

from __future__ import annotations

from typing import Any

import torch

from atom_kernels.adapters.contract import LowRankTerm
from atom_kernels.aiter import linear as aiter_linear
from atom_kernels.aiter.quantized import fp8_blocks, fp8_rows, int8_rows, mxfp4, mxfp4_inside
from atom_kernels.formats import num_bytes as format_bytes
from atom_kernels.formats import weight_specs as tensors_of
from atom_kernels.linear import (
    cases,
    dense,
    native,
    native_packed_lanes,
    native_packed_tiles,
    native_quantized,
    native_tiles,
    onednn,
    quantized,
)
from atom_kernels.linear.batch_invariant import BATCH_INVARIANT_BACKEND
from atom_kernels.linear.composed import between_operators
from atom_kernels.linear.contract import LinearProblem, linear
from atom_kernels.linear.packed_invariant import PACKED_BATCH_INVARIANT_BACKEND
from atom_kernels.linear.triton import backend as triton_backend
from atom_kernels.operator import Op, WeightSpec, Work


def _weight_specs(problem: LinearProblem) -> dict[str, WeightSpec]:
    specs = tensors_of(problem.weight_format, problem.weight_rows, problem.in_features)
    return specs | {"bias": WeightSpec((problem.weight_rows,), problem.dtype, optional=not problem.bias)}


def _reference(
    problem: LinearProblem,
    weights: Any,
    x_TK: torch.Tensor,
    norm_weight_K: torch.Tensor | None = None,
    eps: float = 0.0,
    norm_offset: float = 0.0,
    residual_TN: torch.Tensor | None = None,
    row_scale_TG: torch.Tensor | None = None,
    low_rank: LowRankTerm | None = None,
) -> torch.Tensor:
    weight_NK = problem.weight_format.dequantize(weights, problem.in_features)
    return linear(
        x_TK, weight_NK, weights["bias"], problem.result_dtype, norm_weight_K=norm_weight_K,
        eps=eps, norm_offset=norm_offset, gated=problem.gated, residual_TN=residual_TN,
        input_format=problem.input_format, row_scale_TG=row_scale_TG, low_rank=low_rank,
    )  # fmt: skip


def _empty_result(problem: LinearProblem, x_TK: torch.Tensor, *rest: Any) -> torch.Tensor:
    return x_TK.new_empty((*x_TK.shape[:-1], problem.out_features), dtype=problem.result_dtype)


def _work(problem: LinearProblem, num_rows: int) -> Work:
    """The product's; what its neighbors add is not counted."""
    k, n, weight_rows = problem.in_features, problem.out_features, problem.weight_rows
    weights = format_bytes(problem.weight_format, weight_rows, k)
    num_bytes = weights + num_rows * k * problem.dtype.itemsize + num_rows * n * problem.result_dtype.itemsize
    return Work(num_bytes, 2 * num_rows * k * weight_rows)


# Kernels that multiply, and leave to other operators what stands around the product.
_PRODUCTS = (
    aiter_linear.SHUFFLED_BACKEND,
    aiter_linear.TUNED_BACKEND,
    fp8_rows.SHUFFLED,
    fp8_rows.PLAIN,
    fp8_blocks.SHUFFLED,
    fp8_blocks.PLAIN,
    int8_rows.BACKEND,
    mxfp4.BACKEND,
    mxfp4_inside.BACKEND,
    BATCH_INVARIANT_BACKEND,
    PACKED_BATCH_INVARIANT_BACKEND,
    native_tiles.TILES_F32_BACKEND,
    native.NATIVE_BACKEND,
    native_tiles.TILES_BACKEND,
    native_packed_lanes.PACKED_LANES_BACKEND,
    native_quantized.NATIVE_BACKEND,
    native_packed_tiles.PACKED_TILES_BACKEND,
    onednn.PREPACKED_BACKEND,
    quantized.INT8_BACKEND,
    quantized.DEQUANTIZE_BACKEND,
    dense.DENSE_BACKEND,
)
LINEAR = Op(
    name="linear",
    contract=linear,
    reference=_reference,
    schema="(Tensor x, Tensor? norm_weight=None, float eps=0.0, float norm_offset=0.0, Tensor? residual=None, "
    "Tensor? row_scale=None) -> Tensor",
    fake=_empty_result,
    backends=(
        triton_backend.SKINNY_BACKEND,
        triton_backend.COMPOSED_BACKEND,
        triton_backend.PACKED_SKINNY_BACKEND,
        triton_backend.PACKED_COMPOSED_BACKEND,
        *map(between_operators, _PRODUCTS),
    ),
    weights=_weight_specs,
    make_inputs=cases.make_inputs,
    parity_problems=cases.parity_problems,
    examples=cases.examples,
    tolerance=cases.tolerance,
    work=_work,
)
