"""The weight-only int8 linear operator: torch's packed product for few rows, dequantize and multiply for many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS
from atom_kernels.host_threads.probing import run_apart
from atom_kernels.linear.contract import Int8LinearProblem, linear_int8, quantize_int8
from atom_kernels.operator import Backend, Op, Tolerance, WeightSpec, Work

# Past this many rows the packed product, which is bound by arithmetic, loses to a dense one.
_FEW_ROWS = 4


def _weights(problem: Int8LinearProblem) -> dict[str, WeightSpec]:
    return {
        "weight": WeightSpec((problem.out_features, problem.in_features), torch.int8),
        "scale": WeightSpec((problem.out_features, 1), torch.float32),
        "bias": WeightSpec((problem.out_features,), problem.dtype, optional=not problem.bias),
    }


def _bind_dequantize(problem: Int8LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, scale, bias = weights["weight"], weights["scale"].squeeze(1), weights["bias"]

    def run(x_TK: torch.Tensor) -> torch.Tensor:
        # int8 is exact in every float dtype, so scaling the result rounds less than scaling the weight.
        out = torch.nn.functional.linear(x_TK, weight.to(x_TK.dtype)).float() * scale
        return (out if bias is None else out + bias).to(x_TK.dtype)

    return run


def _bind_packed(problem: Int8LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, scale, bias = weights["weight"].contiguous(), weights["scale"].squeeze(1).to(problem.dtype), weights["bias"]
    function = torch.ops.aten._weight_int8pack_mm.default
    if bias is None:
        return lambda x_TK: function(x_TK, weight, scale)
    return lambda x_TK: function(x_TK, weight, scale) + bias


def _supports_packed(problem: Int8LinearProblem, platform: Any) -> str | None:
    if platform.device != "cpu":
        return "torch's int8 product is for CPUs"
    if problem.dtype != torch.bfloat16:
        return f"for bfloat16 activations, not {problem.dtype}"
    if problem.in_features % 32 or problem.out_features % 32:
        return "for sizes that are multiples of 32"
    return _probe_once()


@functools.cache
def _probe_once() -> str | None:
    return run_apart(_probe)


def _probe() -> str | None:
    problem = Int8LinearProblem(64, 32, torch.bfloat16)
    weight, scale = quantize_int8(torch.randn(32, 64, generator=torch.Generator().manual_seed(0)))
    x = torch.ones(2, 64, dtype=torch.bfloat16)
    try:
        actual = _bind_packed(problem, {"weight": weight, "scale": scale.unsqueeze(1), "bias": None})(x)
    except (RuntimeError, AttributeError, NotImplementedError) as error:
        return f"torch {torch.__version__} has no int8 product here: {str(error).splitlines()[0]}"
    if not torch.allclose(actual, linear_int8(x, weight, scale), atol=0.1, rtol=0.02):
        return f"torch {torch.__version__} gives wrong results for the int8 product"
    return None


def _make_inputs(problem: Int8LinearProblem, num_rows: int, generator: torch.Generator) -> Any:
    weight = torch.randn(problem.out_features, problem.in_features, generator=generator) / problem.in_features**0.5
    quantized, scale = quantize_int8(weight)
    bias = torch.randn(problem.out_features, generator=generator).to(problem.dtype) if problem.bias else None
    x = torch.randn(num_rows, problem.in_features, generator=generator).to(problem.dtype)
    return {"weight": quantized, "scale": scale.unsqueeze(1), "bias": bias}, (x,)


def _problems() -> tuple[Int8LinearProblem, ...]:
    shapes = ((1, 1), (33, 65), (64, 128), (576, 192))
    return tuple(Int8LinearProblem(k, n, dtype, bias) for k, n in shapes for dtype in FLOATS for bias in (False, True))


def _tolerance(problem: Int8LinearProblem) -> Tolerance:
    # bfloat16: the packed product rounds its scales, the dense one its sums before scaling.
    return Tolerance(1e-5, 1e-5) if problem.dtype == torch.float32 else Tolerance(3e-2, 2e-2)


def _work(problem: Int8LinearProblem, num_rows: int) -> Work:
    k, n = problem.in_features, problem.out_features
    return Work(k * n + num_rows * (k + n) * problem.dtype.itemsize, 2 * num_rows * k * n)


OP = Op(
    name="linear_int8",
    contract=linear_int8,
    reference=lambda problem, weights, x_TK: linear_int8(
        x_TK, weights["weight"], weights["scale"].squeeze(1), weights["bias"]
    ),
    schema="(Tensor x) -> Tensor",
    fake=lambda problem, x_TK: x_TK.new_empty((*x_TK.shape[:-1], problem.out_features)),
    backends=(
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
    examples=lambda: (Int8LinearProblem(576, 3072, torch.bfloat16),),
    tolerance=_tolerance,
    work=_work,
)
