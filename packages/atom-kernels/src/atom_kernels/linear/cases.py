"""The linears that backends are checked and measured on, and how near they must come."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS
from atom_kernels.formats import Float8, Integers, Mxfp4, Nvfp4, Offset
from atom_kernels.linear import quantized
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.operator import Tolerance

_FORMATS_BETWEEN_NEIGHBORS = (
    *(Float8(), Float8(128, 128), Integers(8), Integers(4), Mxfp4(), Nvfp4()),
    *(Integers(4, 32, offset, torch.float16) for offset in Offset),
    *(Integers(4, group) for group in (64, 128)),
)


def make_inputs(problem: LinearProblem, num_rows: int, generator: torch.Generator) -> Any:
    """Random weights that keep the size of their inputs, and those.

    Norm and residual depend on the number of rows, so that linears with neighbors have either, both and neither.
    """

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(problem.dtype)

    weight = random(problem.weight_rows, problem.in_features) / problem.in_features**0.5
    bias = random(problem.weight_rows) if problem.bias else None
    weights = {**problem.weight_format.quantize(weight), "bias": bias}
    if problem.neighbors:
        return weights, _with_neighbors(problem, num_rows, random)
    if problem.input_format is not None:
        return weights, (exact_when_rounded(num_rows, problem.in_features, problem.dtype, generator),)
    return weights, (random(num_rows, problem.in_features),)


def _with_neighbors(problem: LinearProblem, num_rows: int, random: Callable[..., torch.Tensor]) -> tuple[Any, ...]:
    norm = (random(problem.in_features) * 0.1 + 1, 1e-5, 0.5) if num_rows % 2 else (None, 0.0, 0.0)
    residual = random(num_rows, problem.out_features) if num_rows % 3 else None
    return random(num_rows, problem.in_features) * 3, *norm, residual


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


def parity_problems() -> tuple[LinearProblem, ...]:
    # The last is longer than a kernel keeps in its caches at once.
    shapes = ((1, 1), (7, 3), (33, 65), (64, 128), (576, 192), (1536, 50), (4300, 20))
    same = tuple(LinearProblem(k, n, dtype, bias) for k, n in shapes for dtype in FLOATS for bias in (False, True))
    wide = (LinearProblem(k, n, torch.bfloat16, bias, torch.float32) for k, n in shapes[1:] for bias in (False, True))
    return (*same, *wide, *quantized.parity_problems(), *_problems_with_neighbors())


def _problems_with_neighbors() -> tuple[LinearProblem, ...]:
    shapes = ((1, 1), (7, 3), (48, 33), (96, 130), (520, 70))
    same = (
        LinearProblem(k, n, dtype, bias, gated=gated, neighbors=True)
        for k, n in shapes
        for dtype in FLOATS
        for bias, gated in ((False, False), (True, True))
    )
    packed = (
        LinearProblem(288, 64, dtype, bias=gated, gated=gated, weight_format=weight_format, neighbors=True)
        for weight_format in _FORMATS_BETWEEN_NEIGHBORS
        for dtype, gated in ((torch.float32, True), (torch.bfloat16, False))
    )
    wide = LinearProblem(48, 33, torch.bfloat16, out_dtype=torch.float32, neighbors=True)
    return (LinearProblem(96, 40, torch.bfloat16, gated=True), *same, wide, *packed)


def examples() -> tuple[LinearProblem, ...]:
    shapes = ((576, 960), (576, 576), (576, 3072), (1536, 576), (576, 49152))
    plain = LinearProblem(4096, 6144, torch.bfloat16, neighbors=True)
    return (
        *(LinearProblem(k, n, torch.bfloat16) for k, n in shapes),
        LinearProblem(576, 49152, torch.bfloat16, out_dtype=torch.float32),
        LinearProblem(4096, 6144, torch.bfloat16),
        LinearProblem(576, 3072, torch.float32),
        *quantized.examples(),
        LinearProblem(1024, 4096, torch.bfloat16, neighbors=True),
        LinearProblem(1024, 3072, torch.bfloat16, gated=True, neighbors=True),
        plain,
        replace(plain, weight_format=Float8(), input_format=Float8()),
        replace(plain, weight_format=Integers(4, 128)),
    )


def tolerance(problem: LinearProblem) -> Tolerance:
    if not problem.is_alone:
        # Inputs are about 3 where no norm comes first: 3 times the tolerance, and products of two if `gated`.
        return {
            torch.float32: Tolerance(1e-4, 3e-5),
            torch.bfloat16: Tolerance(0.15, 3e-2),
            torch.float16: Tolerance(2e-2, 6e-3),
        }[problem.dtype]
    if not problem.is_plain and problem.dtype is not torch.float32:
        # Some kernels round their scales, others their sums before scaling.
        return Tolerance(3e-2, 2e-2)
    return {
        torch.float32: Tolerance(1e-5, 1e-5),
        torch.bfloat16: Tolerance(2e-2, 1.6e-2),
        torch.float16: Tolerance(4e-3, 2e-3),
    }[problem.dtype]
