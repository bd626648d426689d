"""RMS norms that give rows in float8, as the product behind them reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.aiter.quantized import rounded_norms
from atom_kernels.formats import RowRounding
from atom_kernels.norm.contract import RMSNormProblem, add_rms_norm, rms_norm
from atom_kernels.operator import Backend, Op, WeightSpec, Work
from atom_kernels.rounded_rows import dequantized_rows, empty_rows, rounded_rows, rounding_tolerance


@dataclass(frozen=True)
class RoundedNormProblem:
    """A norm, and how its result is rounded."""

    norm: RMSNormProblem
    rounding: RowRounding


Rounded = tuple[torch.Tensor, torch.Tensor]
Summed = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def rounded_rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, rounding: RowRounding) -> Rounded:
    """``rms_norm(x)`` as float8 codes ``[T, D]`` and float32 scales ``[T, groups]``, whose product it is.

    The norm is rounded but once, to float8: a scale is the largest number of its group over the largest of the format.
    """
    return rounded_rows(rms_norm(x_TD.float(), weight_D, eps), rounding)


def rounded_add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, eps: float, rounding: RowRounding
) -> Summed:
    """``rounded_rms_norm(x + residual)`` and the sum, rounded to x's dtype: ``(codes, scales, sum)``.

    Whether the norm is of the rounded sum or of the exact one is left to the kernel.
    """
    total = add_rms_norm(x_TD, residual_TD, weight_D, eps)[1]
    return *rounded_rms_norm(total, weight_D, eps, rounding), total


def _weights(problem: RoundedNormProblem) -> dict[str, WeightSpec]:
    return {"weight": WeightSpec((problem.norm.hidden_size,), problem.norm.dtype)}


def _reference(problem: RoundedNormProblem, weights: Any, x_TD: torch.Tensor) -> Rounded:
    return rounded_rms_norm(x_TD, weights["weight"], problem.norm.eps, problem.rounding)


def _add_reference(problem: RoundedNormProblem, weights: Any, x_TD: torch.Tensor, residual_TD: torch.Tensor) -> Summed:
    return rounded_add_rms_norm(x_TD, residual_TD, weights["weight"], problem.norm.eps, problem.rounding)


def _bind(problem: RoundedNormProblem, weights: Any) -> Callable[..., Rounded]:
    return lambda x_TD: _reference(problem, weights, x_TD)


def _bind_add(problem: RoundedNormProblem, weights: Any) -> Callable[..., Summed]:
    return lambda x_TD, residual_TD: _add_reference(problem, weights, x_TD, residual_TD)


def _inputs(problem: RoundedNormProblem, num_rows: int, generator: torch.Generator, *, num_inputs: int = 1) -> Any:
    size, dtype = problem.norm.hidden_size, problem.norm.dtype
    weight = torch.randn(size, generator=generator) * 0.1 + 1
    rows = (torch.randn(num_rows, size, generator=generator) * 3 for _ in range(num_inputs))
    return {"weight": weight.to(dtype)}, tuple(x.to(dtype) for x in rows)


def _problems() -> tuple[RoundedNormProblem, ...]:
    sizes = ((64, None), (256, 128), (1000, None), (640, 128), (8320, None))
    return tuple(
        RoundedNormProblem(RMSNormProblem(size, dtype, 1e-5), RowRounding(group))
        for size, group in sizes
        for dtype in (torch.bfloat16, torch.float16)
    )


def _examples() -> tuple[RoundedNormProblem, ...]:
    norm = RMSNormProblem(4096, torch.bfloat16, 1e-5)
    return RoundedNormProblem(norm, RowRounding()), RoundedNormProblem(norm, RowRounding(128, by_column=True))


def _work(problem: RoundedNormProblem, num_rows: int, *, tensors: int = 1) -> Work:
    norm = problem.norm
    return Work(num_rows * norm.hidden_size * (tensors * norm.dtype.itemsize + 1))


ROUNDED_RMS_NORM = Op(
    name="rounded_rms_norm",
    contract=rounded_rms_norm,
    reference=_reference,
    schema="(Tensor x) -> (Tensor, Tensor)",
    fake=lambda problem, x_TD: empty_rows(x_TD, x_TD.shape[1], problem.rounding),
    backends=(rounded_norms.NORM, Backend(name="torch", implementation="torch, norm and rounding", bind=_bind)),
    weights=_weights,
    make_inputs=_inputs,
    parity_problems=_problems,
    examples=_examples,
    tolerance=lambda problem: rounding_tolerance(),
    work=_work,
    comparable=dequantized_rows,
)

ROUNDED_ADD_RMS_NORM = Op(
    name="rounded_add_rms_norm",
    contract=rounded_add_rms_norm,
    reference=_add_reference,
    schema="(Tensor x, Tensor residual) -> (Tensor, Tensor, Tensor)",
    fake=lambda problem, x_TD, residual_TD: (
        *empty_rows(x_TD, x_TD.shape[1], problem.rounding),
        torch.empty_like(x_TD),
    ),
    backends=(
        rounded_norms.ADD_NORM,
        Backend(name="torch", implementation="torch, sum, norm and rounding", bind=_bind_add),
    ),
    weights=_weights,
    make_inputs=lambda problem, num_rows, generator: _inputs(problem, num_rows, generator, num_inputs=2),
    parity_problems=_problems,
    examples=_examples,
    tolerance=lambda problem: rounding_tolerance(),
    work=lambda problem, num_rows: _work(problem, num_rows, tensors=3),
    comparable=dequantized_rows,
)
