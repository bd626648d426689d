"""The activations as operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.activation import native
from atom_kernels.activation.contract import (
    ActivationProblem,
    GatedActivationProblem,
    activation,
    gelu_and_mul,
    silu_and_mul,
    swiglu_oai_and_mul,
)
from atom_kernels.activation.names import UNGATED, Activation
from atom_kernels.activation.triton_backend import ACTIVATION_BACKEND, triton_activation
from atom_kernels.aiter.activation import aiter_activation
from atom_kernels.operator import Backend, Op, Work
from atom_kernels.tolerances import elementwise_tolerance


def _always(problem: Any, platform: Any) -> None:
    return None


def _fake(problem: GatedActivationProblem, x_T2I: torch.Tensor) -> torch.Tensor:
    return x_T2I.new_empty((*x_T2I.shape[:-1], problem.intermediate_size))


def _bind_silu(problem: GatedActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    size, silu = problem.intermediate_size, torch.nn.functional.silu
    return lambda x_T2I: silu(x_T2I[..., :size].float()).mul_(x_T2I[..., size:]).to(x_T2I.dtype)


def _bind_gelu(problem: GatedActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x_T2I: gelu_and_mul(x_T2I, problem.approximate)


def _bind_swiglu_oai(problem: GatedActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x_T2I: swiglu_oai_and_mul(x_T2I, alpha=problem.alpha, limit=problem.limit)


def _make_inputs(problem: GatedActivationProblem, num_rows: int, generator: torch.Generator) -> Any:
    x_T2I = torch.randn(num_rows, 2 * problem.intermediate_size, generator=generator) * 4
    return {}, (x_T2I.to(problem.dtype),)


def _work(problem: GatedActivationProblem, num_rows: int) -> Work:
    return Work(3 * num_rows * problem.intermediate_size * problem.dtype.itemsize)


def _problems(**options: Any) -> tuple[GatedActivationProblem, ...]:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    return tuple(GatedActivationProblem(size, dtype, **options) for size in (1, 7, 64, 1000) for dtype in dtypes)


def _examples() -> tuple[GatedActivationProblem, ...]:
    return tuple(GatedActivationProblem(1536, dtype) for dtype in (torch.bfloat16, torch.float32))


def _make_op(
    contract: Callable[..., torch.Tensor],
    bind: Callable[[GatedActivationProblem, Any], Callable[[torch.Tensor], torch.Tensor]],
    reference: Callable[..., torch.Tensor],
    *,
    faster: tuple[Backend, ...],
    problems: Callable[[], tuple[GatedActivationProblem, ...]] = _problems,
) -> Op:
    torch_backend = Backend(name="torch", implementation=f"torch {contract.__name__}", supports=_always, bind=bind)
    return Op(
        name=contract.__name__,
        contract=contract,
        reference=reference,
        schema="(Tensor x) -> Tensor",
        fake=_fake,
        backends=(*faster, torch_backend),
        make_inputs=_make_inputs,
        parity_problems=problems,
        examples=_examples,
        tolerance=lambda problem: elementwise_tolerance(problem.dtype),
        work=_work,
    )


SILU_AND_MUL = _make_op(
    silu_and_mul,
    _bind_silu,
    lambda problem, weights, x_T2I: silu_and_mul(x_T2I),
    faster=(aiter_activation("silu"), triton_activation("silu"), native.SILU_AND_MUL_BACKEND),
)
GELU_AND_MUL = _make_op(
    gelu_and_mul,
    _bind_gelu,
    lambda problem, weights, x_T2I: gelu_and_mul(x_T2I, problem.approximate),
    faster=(aiter_activation("gelu"), triton_activation("gelu")),
    problems=lambda: (*_problems(), *_problems(approximate="tanh")),
)
SWIGLU_OAI_AND_MUL = _make_op(
    swiglu_oai_and_mul,
    _bind_swiglu_oai,
    lambda problem, weights, x_T2I: swiglu_oai_and_mul(x_T2I, alpha=problem.alpha, limit=problem.limit),
    faster=(aiter_activation("swiglu_oai"), triton_activation("swiglu_oai")),
)


def _bind_ungated(problem: ActivationProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: activation(x, problem.activation)


def _ungated_inputs(problem: ActivationProblem, num_rows: int, generator: torch.Generator) -> Any:
    return {}, ((torch.randn(num_rows, problem.size, generator=generator) * 2).to(problem.dtype),)


ACTIVATION = Op(
    name="activation",
    contract=activation,
    reference=lambda problem, weights, x: activation(x, problem.activation),
    schema="(Tensor x) -> Tensor",
    fake=lambda problem, x: torch.empty_like(x),
    backends=(
        ACTIVATION_BACKEND,
        Backend(name="torch", implementation="torch activation", supports=_always, bind=_bind_ungated),
    ),
    make_inputs=_ungated_inputs,
    parity_problems=lambda: tuple(
        ActivationProblem(size, dtype, name)
        for name in UNGATED
        for size in (7, 1000)
        for dtype in (torch.float32, torch.bfloat16, torch.float16)
    ),
    examples=lambda: (ActivationProblem(1536, torch.bfloat16, Activation.RELU2),),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=lambda problem, num_rows: Work(2 * num_rows * problem.size * problem.dtype.itemsize),
)

OPS = (ACTIVATION, SILU_AND_MUL, GELU_AND_MUL, SWIGLU_OAI_AND_MUL)
