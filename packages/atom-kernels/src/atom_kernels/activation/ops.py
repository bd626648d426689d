"""The activations as operators."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from atom_kernels.activation import native, triton_backend
from atom_kernels.activation.contract import ActivationProblem, GatedActivationProblem, activation, gated_activation
from atom_kernels.activation.names import UNGATED, Activation
from atom_kernels.activation.rounded import ROUNDED_GATED_ACTIVATION
from atom_kernels.activation.sigmoid_gate import SIGMOID_GATE
from atom_kernels.aiter import activation as aiter_activation
from atom_kernels.dtypes import FLOATS
from atom_kernels.operator import Backend, Op, Work
from atom_kernels.tolerances import elementwise_tolerance


def _compute_gated(problem: GatedActivationProblem, x_T2I: torch.Tensor) -> torch.Tensor:
    return gated_activation(x_T2I, problem.activation, alpha=problem.alpha, limit=problem.limit)


def _bind_gated(problem: GatedActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    if problem.activation != Activation.SILU:
        return lambda x_T2I: _compute_gated(problem, x_T2I)
    # Without a float32 copy of up.
    size, silu = problem.intermediate_size, torch.nn.functional.silu
    return lambda x_T2I: silu(x_T2I[..., :size].float()).mul_(x_T2I[..., size:]).to(x_T2I.dtype)


def _gated_inputs(problem: GatedActivationProblem, num_rows: int, generator: torch.Generator) -> Any:
    x_T2I = torch.randn(num_rows, 2 * problem.intermediate_size, generator=generator) * 4
    return {}, (x_T2I.to(problem.dtype),)


GATED_ACTIVATION = Op(
    name="gated_activation",
    contract=gated_activation,
    reference=lambda problem, weights, x_T2I: _compute_gated(problem, x_T2I),
    schema="(Tensor x) -> Tensor",
    fake=lambda problem, x_T2I: x_T2I.new_empty((*x_T2I.shape[:-1], problem.intermediate_size)),
    backends=(
        aiter_activation.GATED_BACKEND,
        triton_backend.GATED_BACKEND,
        native.GATED_BACKEND,
        Backend(name="torch", implementation="torch gated_activation", bind=_bind_gated),
    ),
    make_inputs=_gated_inputs,
    parity_problems=lambda: tuple(
        GatedActivationProblem(size, dtype, name)
        for name in Activation
        for size in (1, 7, 64, 1000)
        for dtype in FLOATS
    ),
    examples=lambda: (
        GatedActivationProblem(1536, torch.bfloat16, Activation.SILU),
        GatedActivationProblem(1536, torch.float32, Activation.SILU),
        GatedActivationProblem(6912, torch.bfloat16, Activation.GELU_TANH),
        GatedActivationProblem(2880, torch.bfloat16, Activation.SWIGLU_OAI),
    ),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=lambda problem, num_rows: Work(3 * num_rows * problem.intermediate_size * problem.dtype.itemsize),
)


# Torch's own, which compute in float32 and round once without a float32 copy of what they read or write.
_IN_ONE_PASS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    Activation.SILU: torch.nn.functional.silu,
    Activation.GELU: torch.nn.functional.gelu,
    Activation.GELU_TANH: partial(torch.nn.functional.gelu, approximate="tanh"),
    Activation.RELU: torch.relu,
}


def _bind_ungated(problem: ActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return _IN_ONE_PASS.get(problem.activation, partial(activation, name=problem.activation))


def _ungated_inputs(problem: ActivationProblem, num_rows: int, generator: torch.Generator) -> Any:
    return {}, ((torch.randn(num_rows, problem.size, generator=generator) * 2).to(problem.dtype),)


ACTIVATION = Op(
    name="activation",
    contract=activation,
    reference=lambda problem, weights, x: activation(x, problem.activation),
    schema="(Tensor x) -> Tensor",
    fake=lambda problem, x: torch.empty_like(x),
    backends=(
        triton_backend.ACTIVATION_BACKEND,
        Backend(name="torch", implementation="torch activation", bind=_bind_ungated),
    ),
    make_inputs=_ungated_inputs,
    parity_problems=lambda: tuple(
        ActivationProblem(size, dtype, name) for name in UNGATED for size in (7, 1000) for dtype in FLOATS
    ),
    examples=lambda: (ActivationProblem(1536, torch.bfloat16, Activation.RELU2),),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=lambda problem, num_rows: Work(2 * num_rows * problem.size * problem.dtype.itemsize),
)

OPS = (ACTIVATION, GATED_ACTIVATION, SIGMOID_GATE, ROUNDED_GATED_ACTIVATION)
