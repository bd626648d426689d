"""The linear with its neighbors: norm before, activation and residual after, as one operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.adapters.contract import LowRankTerm
from atom_kernels.aiter import linear as aiter_linear
from atom_kernels.aiter.quantized import fp8_blocks, fp8_rows, int8_rows, mxfp4, mxfp4_inside
from atom_kernels.dtypes import FLOATS
from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset
from atom_kernels.linear.contract import FusedLinearProblem, fused_linear
from atom_kernels.linear.dense import empty_result, random_weights, weight_specs, work
from atom_kernels.linear.triton import backend as triton_backend
from atom_kernels.operator import Backend, Op, Tolerance

_FORMATS = (
    *(Float8(), Float8(128, 128), Integers(8), Integers(4), Mxfp4(), Nvfp4()),
    *(Integers(4, 32, offset, torch.float16) for offset in Offset),
    *(Integers(4, group) for group in (64, 128)),
)


def _reference(
    problem: FusedLinearProblem,
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
    return fused_linear(
        x_TK, weight_NK, weights["bias"], norm_weight_K=norm_weight_K,
        eps=eps, norm_offset=norm_offset, gated=problem.gated, residual_TN=residual_TN,
        out_dtype=problem.result_dtype, input_format=problem.input_format, row_scale_TG=row_scale_TG,
        low_rank=low_rank,
    )  # fmt: skip


def _bind(problem: FusedLinearProblem, weights: Any) -> Callable[..., torch.Tensor]:
    return lambda *inputs: _reference(problem, weights, *inputs)


def _make_inputs(problem: FusedLinearProblem, num_rows: int, generator: torch.Generator) -> Any:
    """Norm and residual depend on the number of rows, so that cases have either, both and neither."""
    weights, random = random_weights(problem, generator)
    norm = (random(problem.in_features) * 0.1 + 1, 1e-5, 0.5) if num_rows % 2 else (None, 0.0, 0.0)
    residual = random(num_rows, problem.out_features) if num_rows % 3 else None
    return weights, (random(num_rows, problem.in_features) * 3, *norm, residual)


def _problems() -> tuple[FusedLinearProblem, ...]:
    shapes = ((1, 1), (7, 3), (48, 33), (96, 130), (520, 70))
    same = tuple(
        FusedLinearProblem(k, n, dtype, bias, gated=gated)
        for k, n in shapes
        for dtype in FLOATS
        for bias, gated in ((False, False), (True, True))
    )
    packed = tuple(
        FusedLinearProblem(288, 64, dtype, bias=gated, gated=gated, weight_format=weight_format)
        for weight_format in _FORMATS
        for dtype, gated in ((torch.float32, True), (torch.bfloat16, False))
    )
    return (*same, FusedLinearProblem(48, 33, torch.bfloat16, out_dtype=torch.float32), *packed)


def _tolerance(problem: FusedLinearProblem) -> Tolerance:
    # Inputs are about 3 where no norm comes first: 3 times a linear's tolerance, and products of two if `gated`.
    return {
        torch.float32: Tolerance(1e-4, 3e-5),
        torch.bfloat16: Tolerance(0.15, 3e-2),
        torch.float16: Tolerance(2e-2, 6e-3),
    }[problem.dtype]


FUSED_LINEAR = Op(
    name="fused_linear",
    contract=fused_linear,
    reference=_reference,
    schema="(Tensor x, Tensor? norm_weight, float eps, float norm_offset, Tensor? residual, "
    "Tensor? row_scale=None) -> Tensor",
    fake=empty_result,
    backends=(
        aiter_linear.FUSED_BACKEND,
        fp8_rows.FUSED_SHUFFLED,
        fp8_rows.FUSED_PLAIN,
        fp8_blocks.FUSED_SHUFFLED,
        fp8_blocks.FUSED_PLAIN,
        int8_rows.FUSED,
        mxfp4.FUSED,
        mxfp4_inside.FUSED,
        triton_backend.SKINNY_BACKEND,
        triton_backend.COMPOSED_BACKEND,
        triton_backend.PACKED_SKINNY_BACKEND,
        triton_backend.PACKED_COMPOSED_BACKEND,
        Backend(name="torch", implementation="torch, in float32", bind=_bind),
    ),
    weights=weight_specs,
    make_inputs=_make_inputs,
    parity_problems=_problems,
    examples=lambda: (
        FusedLinearProblem(1024, 4096, torch.bfloat16),
        FusedLinearProblem(1024, 3072, torch.bfloat16, gated=True),
        FusedLinearProblem(4096, 6144, torch.bfloat16),
        FusedLinearProblem(4096, 6144, torch.bfloat16, weight_format=Float8(), input_format=Float8()),
        FusedLinearProblem(4096, 6144, torch.bfloat16, weight_format=Integers(4, 128)),
    ),
    tolerance=_tolerance,
    work=work,
)
