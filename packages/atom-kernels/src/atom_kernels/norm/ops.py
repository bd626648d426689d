"""The norms as operators: references bound to backends, problems and inputs to check them on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.aiter import norm as aiter_norm
from atom_kernels.dtypes import FLOATS
from atom_kernels.norm import native, triton_backend
from atom_kernels.norm.contract import LayerNormProblem, RMSNormProblem, add_rms_norm, layer_norm, rms_norm
from atom_kernels.norm.gated import GATED_RMS_NORM
from atom_kernels.norm.rounded import ROUNDED_ADD_RMS_NORM, ROUNDED_RMS_NORM
from atom_kernels.operator import Backend, Op, WeightSpec, Work
from atom_kernels.tolerances import elementwise_tolerance


def _weights(problem: RMSNormProblem) -> dict[str, WeightSpec]:
    return {"weight": WeightSpec((problem.hidden_size,), problem.dtype)}


def _layer_norm_weights(problem: LayerNormProblem) -> dict[str, WeightSpec]:
    spec = WeightSpec((problem.hidden_size,), problem.dtype)
    return {"weight": spec, "bias": spec} if problem.bias else {"weight": spec}


def _bind_rms_norm(problem: RMSNormProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    weight, shape, eps = weights["weight"], (problem.hidden_size,), problem.eps
    if problem.weight_offset:
        weight = weight.float() + problem.weight_offset
        return lambda x_TD: torch.nn.functional.rms_norm(x_TD.float(), shape, weight, eps).to(x_TD.dtype)
    return lambda x_TD: torch.nn.functional.rms_norm(x_TD, shape, weight, eps)


def _bind_add_rms_norm(problem: RMSNormProblem, weights: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    norm = _bind_rms_norm(problem, weights)

    def run(x_TD: torch.Tensor, residual_TD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        new_residual = x_TD + residual_TD
        return norm(new_residual), new_residual

    return run


def _bind_layer_norm(problem: LayerNormProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    shape, weight, bias, eps = (problem.hidden_size,), weights["weight"], weights.get("bias"), problem.eps
    if problem.weight_offset:
        weight, bias = weight.float() + problem.weight_offset, None if bias is None else bias.float()
        return lambda x_TD: torch.nn.functional.layer_norm(x_TD.float(), shape, weight, bias, eps).to(x_TD.dtype)
    return lambda x_TD: torch.nn.functional.layer_norm(x_TD, shape, weight, bias, eps)


def _make_inputs(problem: Any, num_rows: int, generator: torch.Generator, *, num_inputs: int = 1) -> Any:
    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(problem.dtype)

    weights = {"weight": random(problem.hidden_size) * 0.1 + 1}
    if getattr(problem, "bias", False):
        weights["bias"] = random(problem.hidden_size)
    return weights, tuple(random(num_rows, problem.hidden_size) * 3 for _ in range(num_inputs))


def _work(problem: Any, num_rows: int, *, tensors: int = 2) -> Work:
    return Work((tensors * num_rows + 1) * problem.hidden_size * problem.dtype.itemsize)


_SIZES = (1, 7, 64, 576, 1000)


def _rms_problems() -> tuple[RMSNormProblem, ...]:
    plain = tuple(RMSNormProblem(size, dtype) for size in _SIZES for dtype in FLOATS)
    return (*plain, RMSNormProblem(96, torch.bfloat16, 1e-5, 1.0), RMSNormProblem(33, torch.float32, 1e-5, 1.0))


def _rms_examples() -> tuple[RMSNormProblem, ...]:
    return tuple(RMSNormProblem(size, dtype, 1e-5) for size in (576, 4096) for dtype in (torch.bfloat16, torch.float32))


RMS_NORM = Op(
    name="rms_norm",
    contract=rms_norm,
    reference=lambda problem, weights, x_TD: rms_norm(
        x_TD, weights["weight"], problem.eps, weight_offset=problem.weight_offset
    ),
    schema="(Tensor x) -> Tensor",
    fake=lambda problem, x_TD: torch.empty_like(x_TD),
    backends=(
        aiter_norm.RMS_NORM_BACKEND,
        triton_backend.RMS_NORM_BACKEND,
        native.RMS_NORM_BACKEND,
        Backend(name="torch", implementation="torch rms_norm", bind=_bind_rms_norm),
    ),
    weights=_weights,
    make_inputs=_make_inputs,
    parity_problems=_rms_problems,
    examples=_rms_examples,
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=_work,
)

ADD_RMS_NORM = Op(
    name="add_rms_norm",
    contract=add_rms_norm,
    reference=lambda problem, weights, x_TD, residual_TD: add_rms_norm(
        x_TD, residual_TD, weights["weight"], problem.eps, weight_offset=problem.weight_offset
    ),
    schema="(Tensor x, Tensor residual) -> (Tensor, Tensor)",
    fake=lambda problem, x_TD, residual_TD: (torch.empty_like(x_TD), torch.empty_like(x_TD)),
    backends=(
        aiter_norm.ADD_RMS_NORM_BACKEND,
        triton_backend.ADD_RMS_NORM_BACKEND,
        native.ADD_RMS_NORM_BACKEND,
        Backend(name="torch", implementation="torch add, rms_norm", bind=_bind_add_rms_norm),
    ),
    weights=_weights,
    make_inputs=lambda problem, num_rows, generator: _make_inputs(problem, num_rows, generator, num_inputs=2),
    parity_problems=_rms_problems,
    examples=_rms_examples,
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=lambda problem, num_rows: _work(problem, num_rows, tensors=4),
)

LAYER_NORM = Op(
    name="layer_norm",
    contract=layer_norm,
    reference=lambda problem, weights, x_TD: layer_norm(
        x_TD, weights["weight"], weights.get("bias"), problem.eps, weight_offset=problem.weight_offset
    ),
    schema="(Tensor x) -> Tensor",
    fake=lambda problem, x_TD: torch.empty_like(x_TD),
    backends=(
        aiter_norm.LAYER_NORM_BACKEND,
        triton_backend.LAYER_NORM_BACKEND,
        native.LAYER_NORM_BACKEND,
        Backend(name="torch", implementation="torch layer_norm", bind=_bind_layer_norm),
    ),
    weights=_layer_norm_weights,
    make_inputs=_make_inputs,
    parity_problems=lambda: tuple(
        LayerNormProblem(size, dtype, bias=bias, weight_offset=offset)
        for size, offset in ((7, 0.0), (64, 1.0), (64, 0.0), (1000, 0.0), (1001, 1.0))
        for dtype in FLOATS
        for bias in (True, False)
    ),
    examples=lambda: (
        LayerNormProblem(1024, torch.bfloat16),
        LayerNormProblem(4096, torch.bfloat16, weight_offset=1.0),
    ),
    tolerance=lambda problem: elementwise_tolerance(problem.dtype),
    work=_work,
)

OPS = (RMS_NORM, ADD_RMS_NORM, GATED_RMS_NORM, LAYER_NORM, ROUNDED_RMS_NORM, ROUNDED_ADD_RMS_NORM)
