"""The linear operator: dense or over quantized weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.aiter import linear as aiter_linear
from atom_kernels.aiter.quantized import fp8_blocks, fp8_rows, int8_rows, mxfp4, mxfp4_inside
from atom_kernels.dtypes import FLOATS
from atom_kernels.formats import num_bytes as format_bytes
from atom_kernels.formats import weight_specs as tensors_of
from atom_kernels.linear import native, native_quantized, onednn, quantized
from atom_kernels.linear.batch_invariant import BATCH_INVARIANT_BACKEND, why_not_cublas
from atom_kernels.linear.contract import LinearProblem, linear
from atom_kernels.linear.packed_invariant import PACKED_BATCH_INVARIANT_BACKEND
from atom_kernels.operator import Backend, Op, Tolerance, WeightSpec, Work


def weight_specs(problem: LinearProblem) -> dict[str, WeightSpec]:
    """The weights of a linear, alone or with its neighbors."""
    specs = tensors_of(problem.weight_format, problem.weight_rows, problem.in_features)
    return specs | {"bias": WeightSpec((problem.weight_rows,), problem.dtype, optional=not problem.bias)}


def _bind(problem: LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, bias, function = weights["weight"], weights["bias"], torch.nn.functional.linear
    if problem.result_dtype == problem.dtype:
        return lambda x_TK: function(x_TK, weight, bias)
    if bias is None and _keeps_sums(weight):
        return lambda x_TK: torch.mm(x_TK, weight.t(), out_dtype=problem.result_dtype)
    return lambda x_TK: function(x_TK, weight, bias).to(problem.result_dtype)


def _keeps_sums(weight: torch.Tensor) -> bool:
    """Whether torch can give a product's sums in float32; torch 2.8 for ROCm raises, and then they are rounded."""
    if not weight.is_cuda:
        return False
    try:
        torch.mm(weight[:1], weight[:1].t(), out_dtype=torch.float32)
    except RuntimeError:
        return False
    return True


def random_weights(
    problem: LinearProblem, generator: torch.Generator
) -> tuple[dict[str, torch.Tensor | None], Callable[..., torch.Tensor]]:
    """Weights that keep the size of their inputs, and what gives more numbers of the problem's dtype by their shape."""

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(problem.dtype)

    weight = random(problem.weight_rows, problem.in_features) / problem.in_features**0.5
    bias = random(problem.weight_rows) if problem.bias else None
    return {**problem.weight_format.quantize(weight), "bias": bias}, random


def _reference(problem: LinearProblem, weights: Any, x_TK: torch.Tensor) -> torch.Tensor:
    weight = problem.weight_format.dequantize(weights, problem.in_features)
    return linear(x_TK, weight, weights["bias"], problem.out_dtype)


def _make_inputs(problem: LinearProblem, num_rows: int, generator: torch.Generator) -> Any:
    weights, random = random_weights(problem, generator)
    if problem.input_format is not None:
        return weights, (exact_when_rounded(num_rows, problem.in_features, problem.dtype, generator),)
    return weights, (random(num_rows, problem.in_features),)


def exact_when_rounded(num_rows: int, num_columns: int, dtype: torch.dtype, generator: torch.Generator) -> torch.Tensor:
    """Rows that formats of floating point hold exactly, so that kernels agree whether they round rows or not.

    Powers of two, up to 16 apart in a row. Rows, and blocks of 32 columns, have unlike largest numbers.
    """

    def drawn(low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=generator)

    blocks = drawn(-1, 1, num_rows, -(-num_columns // 32)).repeat_interleave(32, 1)[:, :num_columns]
    exponents = drawn(-1, 2, num_rows, 1) + blocks - drawn(0, 4, num_rows, num_columns)
    signs = 2 * drawn(0, 2, num_rows, num_columns) - 1
    return (signs * torch.exp2(exponents.float())).to(dtype)


def _problems() -> tuple[LinearProblem, ...]:
    # The last is longer than a kernel keeps in its caches at once.
    shapes = ((1, 1), (7, 3), (33, 65), (64, 128), (576, 192), (1536, 50), (4300, 20))
    same = tuple(LinearProblem(k, n, dtype, bias) for k, n in shapes for dtype in FLOATS for bias in (False, True))
    wide = (LinearProblem(k, n, torch.bfloat16, bias, torch.float32) for k, n in shapes[1:] for bias in (False, True))
    return (*same, *wide, *quantized.parity_problems())


def _examples() -> tuple[LinearProblem, ...]:
    shapes = ((576, 960), (576, 576), (576, 3072), (1536, 576), (576, 49152))
    return (
        *(LinearProblem(k, n, torch.bfloat16) for k, n in shapes),
        LinearProblem(576, 49152, torch.bfloat16, out_dtype=torch.float32),
        LinearProblem(4096, 6144, torch.bfloat16),
        LinearProblem(576, 3072, torch.float32),
        *quantized.examples(),
    )


def _tolerance(problem: LinearProblem) -> Tolerance:
    if not problem.is_plain and problem.dtype is not torch.float32:
        # Some kernels round their scales, others their sums before scaling.
        return Tolerance(3e-2, 2e-2)
    return {
        torch.float32: Tolerance(1e-5, 1e-5),
        torch.bfloat16: Tolerance(2e-2, 1.6e-2),
        torch.float16: Tolerance(4e-3, 2e-3),
    }[problem.dtype]


def work(problem: LinearProblem, num_rows: int) -> Work:
    """The product's; what its neighbors add is not counted."""
    k, n, weight_rows = problem.in_features, problem.out_features, problem.weight_rows
    weights = format_bytes(problem.weight_format, weight_rows, k)
    num_bytes = weights + num_rows * k * problem.dtype.itemsize + num_rows * n * problem.result_dtype.itemsize
    return Work(num_bytes, 2 * num_rows * k * weight_rows)


def empty_result(problem: LinearProblem, x_TK: torch.Tensor, *rest: Any) -> torch.Tensor:
    """A tensor for the result of x."""
    return x_TK.new_empty((*x_TK.shape[:-1], problem.out_features), dtype=problem.result_dtype)


OP = Op(
    name="linear",
    contract=linear,
    reference=_reference,
    schema="(Tensor x) -> Tensor",
    fake=empty_result,
    backends=(
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
        native.NATIVE_BACKEND,
        native_quantized.NATIVE_BACKEND,
        onednn.PREPACKED_BACKEND,
        quantized.INT8_BACKEND,
        quantized.DEQUANTIZE_BACKEND,
        Backend(name="torch", implementation="torch linear", supports=why_not_cublas, bind=_bind),
    ),
    weights=weight_specs,
    make_inputs=_make_inputs,
    parity_problems=_problems,
    examples=_examples,
    tolerance=_tolerance,
    work=work,
)
