"""The product of each head as an operator: the problems that it is explained, checked and measured on."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from atom_kernels.aiter.batched_gemm import BACKEND as AITER
from atom_kernels.aiter.quantized.batched_fp8 import BACKEND as AITER_FP8
from atom_kernels.aiter.quantized.batched_mxfp4 import BACKEND as AITER_MXFP4
from atom_kernels.dtypes import FLOATS
from atom_kernels.formats.codes import E2M1_MAGNITUDES
from atom_kernels.head_product.contract import FLOAT8, GROUP, MXFP4, HeadProductProblem, head_product
from atom_kernels.operator import Backend, Op, WeightSpec, Work
from atom_kernels.tolerances import elementwise_tolerance

# Heads, inputs, outputs. DeepSeek-R1 and Kimi-K2 on 8 ranks, GLM-5 on 8: queries are absorbed, then values are made.
_EXAMPLES = ((16, 128, 512), (16, 512, 128), (8, 192, 512), (8, 512, 256))
_ROUNDED_EXAMPLE = (16, 512, 128)
# A row of its kind has such a number in each group, and multiples of a part of it: then rounding changes nothing.
_LARGEST = {"float8_e4m3fn": 7, "float8_e4m3fnuz": 15}


def _reference(problem: HeadProductProblem, weights: Any, x_THK: torch.Tensor) -> torch.Tensor:
    return head_product(x_THK, weights["weight"], problem.rounded_to)


def _bind(problem: HeadProductProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return partial(_reference, problem, weights)


def _make_inputs(problem: HeadProductProblem, num_rows: int, generator: torch.Generator) -> Any:
    heads, size, outputs = problem.num_heads, problem.in_features, problem.out_features
    x = _numbers((num_rows, heads, size), problem.rounded_to, generator)
    # Rows of unlike sizes, whose scales differ.
    x *= torch.exp2(torch.randint(-2, 3, (num_rows, heads, 1), generator=generator).float())
    weight = _numbers((heads, outputs, size), problem.rounded_to, generator)
    weight /= 2 ** round(size.bit_length() / 2 + 2 * (problem.rounded_to is not None))
    return {"weight": weight.to(problem.dtype)}, (x.to(problem.dtype),)


def _numbers(shape: tuple[int, ...], rounded_to: str | None, generator: torch.Generator) -> torch.Tensor:
    """Random numbers; those that are to be rounded are numbers of the format already, over scales that are exact."""
    if rounded_to is None:
        return torch.randn(shape, generator=generator)
    signs = torch.randint(0, 2, shape, generator=generator) * 2.0 - 1
    if rounded_to == MXFP4:
        sizes = torch.tensor(E2M1_MAGNITUDES)[torch.randint(0, 8, shape, generator=generator)]
    else:
        sizes = torch.randint(0, _LARGEST[rounded_to] + 1, shape, generator=generator).float()
    sizes[..., :: GROUP[rounded_to]] = E2M1_MAGNITUDES[-1] if rounded_to == MXFP4 else _LARGEST[rounded_to]
    return sizes * signs


def _parity_problems() -> tuple[HeadProductProblem, ...]:
    odd = [HeadProductProblem(3, 24, 20, dtype) for dtype in FLOATS]
    shapes = ((3, 24, 20), (2, 192, 512), (1, 512, 40), (4, 128, 33))
    rounded = [HeadProductProblem(*shape, torch.bfloat16, name) for shape in shapes for name in (None, *FLOAT8)]
    blocks = [HeadProductProblem(*shape, torch.bfloat16, MXFP4) for shape in ((3, 128, 20), (2, 512, 40), (1, 96, 8))]
    return (*odd, *rounded, *blocks)


def _work(problem: HeadProductProblem, num_rows: int) -> Work:
    heads, size, outputs = problem.num_heads, problem.in_features, problem.out_features
    bits = 4.25 if problem.rounded_to == MXFP4 else 8 if problem.rounded_to else 8 * problem.dtype.itemsize
    moved = num_rows * (size + outputs) * problem.dtype.itemsize + int(size * outputs * bits / 8)
    return Work(heads * moved, 2 * num_rows * heads * size * outputs)


HEAD_PRODUCT = Op(
    name="head_product",
    contract=head_product,
    reference=_reference,
    schema="(Tensor x) -> Tensor",
    fake=lambda problem, x_THK: x_THK.new_empty((*x_THK.shape[:2], problem.out_features)),
    backends=(
        AITER,
        AITER_FP8,
        AITER_MXFP4,
        Backend(name="torch", implementation="torch einsum, rounded first where it is asked for", bind=_bind),
    ),
    weights=lambda problem: {
        "weight": WeightSpec((problem.num_heads, problem.out_features, problem.in_features), problem.dtype)
    },
    make_inputs=_make_inputs,
    parity_problems=_parity_problems,
    examples=lambda: (
        *(HeadProductProblem(*shape, torch.bfloat16) for shape in _EXAMPLES),
        *(HeadProductProblem(*_ROUNDED_EXAMPLE, torch.bfloat16, name) for name in (*FLOAT8, MXFP4)),
    ),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=_work,
)
OPS = (HEAD_PRODUCT,)
