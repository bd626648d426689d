"""The scheme of weights that stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from atom_kernels.formats import WeightFormat
from atom_kernels.linear import FUSED_LINEAR, OP, FusedLinearProblem, LinearProblem
from atom_kernels.plan import Plan
from atom_kernels.select import select
from atom_models.quantization.scheme import (
    DENSE_INPUT,
    InputFormat,
    LinearScheme,
    LinearSpec,
    Unnormed,
    UnnormedInput,
)


@dataclass(frozen=True)
class Dense(LinearScheme):
    """Weights in the model's dtype, packed as the platform likes them."""

    def input_format(self, spec: LinearSpec) -> InputFormat:
        """Activations before their norm, where the linear's kernel norms by itself."""
        return input_format_of(fused_plan(spec))

    def plan(self, spec: LinearSpec) -> Plan:
        problem = LinearProblem(spec.in_features, spec.out_features, spec.dtype, spec.bias, spec.out_dtype)
        return fused_plan(spec) or select(OP, problem, spec.platform)

    def finish(self, spec: LinearSpec, weights: Mapping[str, torch.Tensor]) -> Callable[..., torch.Tensor]:
        return prepare(self.plan(spec), weights)


def fused_plan(
    spec: LinearSpec, weight_format: WeightFormat | None = None, inputs: WeightFormat | None = None
) -> Plan | None:
    """The plan of a linear with its neighbors, where it is more than the operators one after the other."""
    outputs = spec.out_features // 2 if spec.gated else spec.out_features
    plain = LinearProblem(spec.in_features, outputs, spec.dtype, spec.bias, spec.out_dtype, weight_format, inputs)
    plan = select(FUSED_LINEAR, FusedLinearProblem(**vars(plain), gated=spec.gated), spec.platform)
    return None if plan.rows[0].backend == "torch" else plan


def input_format_of(fused: Plan | None) -> InputFormat:
    limit = None if fused is None else fused.rows[0].max_rows
    return DENSE_INPUT if limit is None else UnnormedInput(limit)


def prepare(plan: Plan, weights: Mapping[str, torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A plan's kernel with its weights, called as a scheme's `apply`."""
    run = plan.prepare(weights)
    if plan.op is not FUSED_LINEAR:
        return run

    def apply(x: Any, residual: torch.Tensor | None = None) -> torch.Tensor:
        if isinstance(x, Unnormed):
            return run(*x, residual)
        return run(x, None, 0.0, 0.0, residual)

    return apply
