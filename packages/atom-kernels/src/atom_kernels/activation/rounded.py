"""Gated activations that give rows in float8, as the product behind them reads them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.activation.contract import GatedActivationProblem, gated_activation
from atom_kernels.activation.names import Activation
from atom_kernels.aiter.quantized import rounded_activation as aiter_backend
from atom_kernels.formats import RowRounding
from atom_kernels.operator import Backend, Op, Work
from atom_kernels.rounded_rows import dequantized_rows, empty_rows, rounded_rows, rounding_tolerance


@dataclass(frozen=True)
class RoundedActivationProblem:
    """A gated activation, and how its result is rounded."""

    gated: GatedActivationProblem
    rounding: RowRounding


Rounded = tuple[torch.Tensor, torch.Tensor]


def rounded_gated_activation(x_T2I: torch.Tensor, name: Activation, rounding: RowRounding) -> Rounded:
    """``gated_activation(x)`` as float8 codes ``[T, I]`` and float32 scales ``[T, groups]``, whose product it is.

    It is rounded but once, to float8: a scale is the largest number of its group over the largest of the format.
    """
    return rounded_rows(gated_activation(x_T2I.float(), name), rounding)


def _reference(problem: RoundedActivationProblem, weights: Any, x_T2I: torch.Tensor) -> Rounded:
    return rounded_gated_activation(x_T2I, problem.gated.activation, problem.rounding)


def _bind(problem: RoundedActivationProblem, weights: Any) -> Callable[[torch.Tensor], Rounded]:
    return lambda x_T2I: _reference(problem, weights, x_T2I)


def _inputs(problem: RoundedActivationProblem, num_rows: int, generator: torch.Generator) -> Any:
    x_T2I = torch.randn(num_rows, 2 * problem.gated.intermediate_size, generator=generator) * 4
    return {}, (x_T2I.to(problem.gated.dtype),)


def _problems() -> tuple[RoundedActivationProblem, ...]:
    return tuple(
        RoundedActivationProblem(GatedActivationProblem(size, dtype, Activation.SILU), RowRounding(group))
        for size, group in ((128, 128), (640, 128), (2304, 128), (96, None))
        for dtype in (torch.bfloat16, torch.float16)
    )


ROUNDED_GATED_ACTIVATION = Op(
    name="rounded_gated_activation",
    contract=rounded_gated_activation,
    reference=_reference,
    schema="(Tensor x) -> (Tensor, Tensor)",
    fake=lambda problem, x_T2I: empty_rows(x_T2I, problem.gated.intermediate_size, problem.rounding),
    backends=(
        aiter_backend.BACKEND,
        Backend(name="torch", implementation="torch, activation and rounding", bind=_bind),
    ),
    make_inputs=_inputs,
    parity_problems=_problems,
    examples=lambda: (
        RoundedActivationProblem(
            GatedActivationProblem(2304, torch.bfloat16, Activation.SILU), RowRounding(128, by_column=True)
        ),
    ),
    tolerance=lambda problem: rounding_tolerance(),
    work=lambda problem, num_rows: Work(
        num_rows * problem.gated.intermediate_size * (2 * problem.gated.dtype.itemsize + 1)
    ),
    comparable=dequantized_rows,
)
