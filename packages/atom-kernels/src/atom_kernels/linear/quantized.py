"""The linear operator over quantized weights: C over packed codes, torch's int8 product, or dequantize and multiply."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS
from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset, weight_specs
from atom_kernels.host_threads.probing import run_apart
from atom_kernels.linear import native_quantized
from atom_kernels.linear.contract import QuantizedLinearProblem, linear_quantized
from atom_kernels.operator import Backend, Op, Tolerance, WeightSpec, Work

# Past this many rows the packed product, which is bound by arithmetic, loses to a dense one.
_FEW_ROWS = 4


def _weights(problem: QuantizedLinearProblem) -> dict[str, WeightSpec]:
    specs = weight_specs(problem.weight_format, problem.out_features, problem.in_features)
    return specs | {"bias": WeightSpec((problem.out_features,), problem.dtype, optional=not problem.bias)}


def _reference(problem: QuantizedLinearProblem, weights: Any, x_TK: torch.Tensor) -> torch.Tensor:
    parts = {name: weights[name] for name in problem.weight_format.parts}
    return linear_quantized(x_TK, parts, problem.weight_format, weights["bias"])


def _bind_dequantize(problem: QuantizedLinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    if problem.weight_format != Integers(8):
        return lambda x_TK: _reference(problem, weights, x_TK)
    weight, scale, bias = weights["weight"], weights["scale"].squeeze(1), weights["bias"]

    def run(x_TK: torch.Tensor) -> torch.Tensor:
        # int8 is exact in every float dtype, so scaling the result rounds less than scaling the weight.
        out = torch.nn.functional.linear(x_TK, weight.to(x_TK.dtype)).float() * scale
        return (out if bias is None else out + bias).to(x_TK.dtype)

    return run


def _bind_packed(problem: QuantizedLinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, scale = weights["weight"].contiguous(), weights["scale"].squeeze(1).to(problem.dtype)
    bias, function = weights["bias"], torch.ops.aten._weight_int8pack_mm.default
    if bias is None:
        return lambda x_TK: function(x_TK, weight, scale)
    return lambda x_TK: function(x_TK, weight, scale) + bias


def _supports_packed(problem: QuantizedLinearProblem, platform: Any) -> str | None:
    if platform.device != "cpu":
        return "torch's int8 product is for CPUs"
    if problem.weight_format != Integers(8):
        return f"for int8 per row, not {problem.weight_format.name}"
    if problem.dtype != torch.bfloat16:
        return f"for bfloat16 activations, not {problem.dtype}"
    if problem.in_features % 32 or problem.out_features % 32:
        return "for sizes that are multiples of 32"
    return _probe_once()


@functools.cache
def _probe_once() -> str | None:
    return run_apart(_probe)


def _probe() -> str | None:
    problem = QuantizedLinearProblem(64, 32, torch.bfloat16, Integers(8))
    weights = Integers(8).quantize(torch.randn(32, 64, generator=torch.Generator().manual_seed(0)))
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    try:
        actual = _bind_packed(problem, {**weights, "bias": None})(x)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"torch {torch.__version__} has no int8 product here: {str(error).splitlines()[0]}"
    if not torch.allclose(actual, linear_quantized(x, weights, Integers(8)), atol=0.1, rtol=0.02):
        return f"torch {torch.__version__} gives wrong results for the int8 product"
    return None


def _make_inputs(problem: QuantizedLinearProblem, num_rows: int, generator: torch.Generator) -> Any:
    weight = torch.randn(problem.out_features, problem.in_features, generator=generator) / problem.in_features**0.5
    bias = torch.randn(problem.out_features, generator=generator).to(problem.dtype) if problem.bias else None
    x = torch.randn(num_rows, problem.in_features, generator=generator).to(problem.dtype)
    return {**problem.weight_format.quantize(weight), "bias": bias}, (x,)


def _problems() -> tuple[QuantizedLinearProblem, ...]:
    shapes = ((1, 1), (33, 65), (64, 128), (576, 192))
    formats = (
        *(
            Float8(),
            Float8(128, 128),
            Float8(1, 32),
            Integers(8, 32),
            Integers(4),
            Mxfp4(),
            Nvfp4(),
            Nvfp4(divides=True),
        ),
        *(Integers(4, 32, offset, torch.float16) for offset in Offset),
    )
    by_row = (
        QuantizedLinearProblem(k, n, dtype, Integers(8), bias)
        for k, n in shapes
        for dtype in FLOATS
        for bias in (False, True)
    )
    others = (
        QuantizedLinearProblem(k, n, torch.float32, one, bias)
        for k, n, bias in ((64, 37, True), (576, 128, False), (8224, 9, True))
        for one in formats
    )
    return (*by_row, *others, *(QuantizedLinearProblem(96, 40, torch.bfloat16, one, True) for one in formats))


def _tolerance(problem: QuantizedLinearProblem) -> Tolerance:
    # bfloat16: the packed product rounds its scales, the dense one its sums before scaling.
    return Tolerance(1e-5, 1e-5) if problem.dtype == torch.float32 else Tolerance(3e-2, 2e-2)


def _work(problem: QuantizedLinearProblem, num_rows: int) -> Work:
    k, n = problem.in_features, problem.out_features
    weights = sum(spec.num_bytes for spec in weight_specs(problem.weight_format, n, k).values())
    return Work(weights + num_rows * (k + n) * problem.dtype.itemsize, 2 * num_rows * k * n)


LINEAR_QUANTIZED = Op(
    name="linear_quantized",
    contract=linear_quantized,
    reference=_reference,
    schema="(Tensor x) -> Tensor",
    fake=lambda problem, x_TK: x_TK.new_empty((*x_TK.shape[:-1], problem.out_features)),
    backends=(
        native_quantized.NATIVE_BACKEND,
        Backend(
            name="torch",
            implementation="torch int8 product",
            supports=_supports_packed,
            bind=_bind_packed,
            max_rows=_FEW_ROWS,
        ),
        Backend(
            name="torch",
            implementation="dequantize, torch linear",
            bind=_bind_dequantize,
        ),
    ),
    weights=_weights,
    make_inputs=_make_inputs,
    parity_problems=_problems,
    examples=lambda: (
        QuantizedLinearProblem(576, 3072, torch.bfloat16, Integers(8)),
        QuantizedLinearProblem(576, 3072, torch.float32, Integers(8)),
        QuantizedLinearProblem(576, 3072, torch.float32, Integers(4, 32, scale_dtype=torch.float16)),
        QuantizedLinearProblem(576, 3072, torch.float32, Mxfp4()),
        QuantizedLinearProblem(576, 3072, torch.float32, Float8(128, 128)),
    ),
    tolerance=_tolerance,
    work=_work,
)
