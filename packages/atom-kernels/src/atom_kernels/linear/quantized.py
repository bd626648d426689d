"""Linears over quantized weights in torch: its int8 product, or dequantize and multiply."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS
from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset, WeightFormat
from atom_kernels.host_threads.probing import run_apart
from atom_kernels.linear.contract import LinearProblem, linear
from atom_kernels.operator import Backend

# Past this many rows the packed product, which is bound by arithmetic, loses to a dense one.
_FEW_ROWS = 4


def _bind_dequantize(problem: LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight_format, bias = problem.weight_format, weights["bias"]
    if weight_format != Integers(8) or problem.result_dtype != problem.dtype:
        parts = {name: weights[name] for name in weight_format.parts}
        return lambda x_TK: linear(x_TK, weight_format.dequantize(parts, problem.in_features), bias, problem.out_dtype)
    weight, scale = weights["weight"], weights["scale"].squeeze(1)

    def run(x_TK: torch.Tensor) -> torch.Tensor:
        # int8 is exact in every float dtype, so scaling the result rounds less than scaling the weight.
        out = torch.nn.functional.linear(x_TK, weight.to(x_TK.dtype)).float() * scale
        return (out if bias is None else out + bias).to(problem.result_dtype)

    return run


def _bind_packed(problem: LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, scale = weights["weight"].contiguous(), weights["scale"].squeeze(1).to(problem.dtype)
    bias, function = weights["bias"], torch.ops.aten._weight_int8pack_mm.default
    if bias is None:
        return lambda x_TK: function(x_TK, weight, scale)
    return lambda x_TK: function(x_TK, weight, scale) + bias


def _supports_packed(problem: LinearProblem, platform: Any) -> str | None:
    if problem.result_dtype != problem.dtype:
        return "gives its input's dtype"
    if platform.device != "cpu":
        return "torch's int8 product is for CPUs"
    if problem.weight_format != Integers(8):
        return f"for int8 per row, not {problem.weight_format.name}"
    if problem.dtype != torch.bfloat16:
        return f"for bfloat16 activations, not {problem.dtype}"
    if problem.in_features % 32 or problem.weight_rows % 32:
        return "for sizes that are multiples of 32"
    return _probe_once()


@functools.cache
def _probe_once() -> str | None:
    return run_apart(_probe)


def _probe() -> str | None:
    problem = LinearProblem(64, 32, torch.bfloat16, weight_format=Integers(8))
    weights = Integers(8).quantize(torch.randn(32, 64, generator=torch.Generator().manual_seed(0)))
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    try:
        actual = _bind_packed(problem, {**weights, "bias": None})(x)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"torch {torch.__version__} has no int8 product here: {str(error).splitlines()[0]}"
    if not torch.allclose(actual, linear(x, Integers(8).dequantize(weights, 64)), atol=0.1, rtol=0.02):
        return f"torch {torch.__version__} gives wrong results for the int8 product"
    return None


INT8_BACKEND = Backend(
    name="torch",
    implementation="torch int8 product",
    supports=_supports_packed,
    bind=_bind_packed,
    max_rows=_FEW_ROWS,
)
DEQUANTIZE_BACKEND = Backend(
    name="torch",
    implementation="dequantize, torch linear",
    supports=lambda problem, _: "for quantized weights" if problem.is_plain else None,
    bind=_bind_dequantize,
)


def parity_problems() -> tuple[LinearProblem, ...]:
    """Every format; int8 by row in all dtypes."""
    shapes = ((1, 1), (33, 65), (64, 128), (576, 192))
    formats = (
        *(
            Float8(),
            Float8(128, 128),
            Float8(1, 32),
            Integers(8, 32),
            Integers(8, 16),
            Integers(8, 32, Offset.MINIMUM),
            Integers(4),
            Mxfp4(),
            Nvfp4(),
            Nvfp4(divides=True),
        ),
        *(Integers(4, 32, offset, torch.float16) for offset in Offset),
    )
    by_row = (
        LinearProblem(k, n, dtype, bias, weight_format=Integers(8))
        for k, n in shapes
        for dtype in FLOATS
        for bias in (False, True)
    )
    others = (
        LinearProblem(k, n, torch.float32, bias, weight_format=one)
        for k, n, bias in ((64, 37, True), (576, 128, False), (8224, 9, True))
        for one in formats
    )
    halves = (LinearProblem(96, 40, torch.bfloat16, True, weight_format=one) for one in formats)
    return (*by_row, *others, *halves, *_rounded_problems())


def _rounded_problems() -> tuple[LinearProblem, ...]:
    """Linears whose rows may be rounded too, as checkpoints say it."""
    blocks, tiles = Float8(1, 128), Float8(128, 128)
    shapes: tuple[tuple[WeightFormat, WeightFormat, tuple[tuple[int, int], ...]], ...] = (
        (Float8(), Float8(), ((256, 48), (592, 24), (1536, 64), (16, 8), (40, 8))),
        (tiles, blocks, ((128, 136), (256, 144), (640, 576), (192, 16))),
        (Integers(8), Integers(8), ((16, 8), (592, 24))),
        (Mxfp4(), Mxfp4(), ((256, 128), (768, 384), (512, 40))),
    )
    return tuple(
        LinearProblem(k, n, dtype, bias, weight_format=weights, input_format=inputs)
        for weights, inputs, sizes in shapes
        for k, n in sizes
        for dtype, bias in ((torch.bfloat16, False), (torch.float16, True))
    )


def examples() -> tuple[LinearProblem, ...]:
    formats = (Integers(8), Integers(4, 32, scale_dtype=torch.float16), Mxfp4(), Float8(128, 128))
    return (
        LinearProblem(576, 3072, torch.bfloat16, weight_format=Integers(8)),
        *(LinearProblem(576, 3072, torch.float32, weight_format=one) for one in formats),
        *(
            LinearProblem(4096, 6144, torch.bfloat16, weight_format=weights, input_format=inputs)
            for weights, inputs in (
                (Float8(), Float8()),
                (Float8(128, 128), Float8(1, 128)),
                (Integers(8), Integers(8)),
                (Mxfp4(), Mxfp4()),
            )
        ),
    )
