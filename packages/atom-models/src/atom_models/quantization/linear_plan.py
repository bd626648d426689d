"""From the format that linears are to hold their weights in to the problem and the plan of one linear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from atom_kernels.formats import WeightFormat
from atom_kernels.linear import FUSED_LINEAR, OP, FusedLinearProblem
from atom_kernels.plan import Plan
from atom_kernels.platform import Platform
from atom_kernels.select import select
from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError
from atom_models.quantization.layer_quantization import HeldFormat

# Inputs that kernels take in any format.
_ANY_SIZE = 1024


class Unnormed(NamedTuple):
    """Activations that the linear is to norm by itself, and the norm: see `atom_kernels.norm.rms_norm`."""

    x_TD: torch.Tensor
    weight_D: torch.Tensor
    eps: float
    weight_offset: float


def held_problem(
    plain: FusedLinearProblem, held: HeldFormat | None, stored: WeightFormat, platform: Platform
) -> FusedLinearProblem:
    """The problem of a linear of plain weights, with the format in which it holds weights that are `stored` in one.

    Raises:
        UnsupportedQuantizationError: weights are to be rounded to a format that no kernel of this machine reads.
    """
    if held is None:
        return plain
    problem = replace(plain, weight_format=held.weights or stored, input_format=held.inputs)
    if held.without_kernel or _has_kernel(problem, platform):
        return problem
    if held.weights is not None:
        reason = why_never_packed(held.weights, plain.dtype, platform, input_format=held.inputs)
        if reason is not None:
            raise UnsupportedQuantizationError(f"weights are not rounded to {held.weights.name} here: {reason}")
    return plain


def plan_linear(problem: FusedLinearProblem, platform: Platform) -> Plan:
    """The linear with its neighbors where a kernel takes them in, else the linear alone."""
    fused = select(FUSED_LINEAR, problem, platform)
    return select(OP, problem.product, platform) if fused.rows[0].backend == "torch" else fused


def max_fused_rows(plan: Plan) -> int:
    """Up to so many rows it pays to leave the norm before the linear and the residual after it to its kernel."""
    return (plan.rows[0].max_rows or 0) if plan.op is FUSED_LINEAR else 0


def prepare(plan: Plan, weights: Mapping[str, torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``apply(x, residual=None)`` with those weights; x may be `Unnormed`, and there may be a residual, in fused rows.

    Args:
        weights: the tensors of the format, and "bias" if there is one. The caller drops them.
    """
    run = plan.prepare(weights)
    if plan.op is not FUSED_LINEAR:
        return run

    def apply(x: Any, residual: torch.Tensor | None = None) -> torch.Tensor:
        if isinstance(x, Unnormed):
            return run(*x, residual)
        return run(x, None, 0.0, 0.0, residual)

    return apply


def why_never_packed(
    weight_format: WeightFormat,
    dtype: torch.dtype,
    platform: Platform,
    *,
    input_format: WeightFormat | None = None,
) -> str | None:
    """Why no kernel of the platform reads the format, whatever the sizes of the linear; None where one does.

    Args:
        input_format: what activations may be rounded to: some kernels want to.
    """
    plain = FusedLinearProblem(_ANY_SIZE, _ANY_SIZE, dtype)
    packed = replace(plain, weight_format=weight_format, input_format=input_format)
    if _has_kernel(packed, platform):
        return None
    # What keeps a kernel from plain weights too says nothing of the format.
    general = _passed_over(plain, platform)
    reasons = [one for one in _passed_over(packed, platform) if not one.startswith("multiplies plain")]
    return "; ".join(one for one in reasons if one not in general) or "there is no kernel for it"


def _has_kernel(problem: FusedLinearProblem, platform: Platform) -> bool:
    """Whether a kernel reads the format, instead of torch that makes plain numbers of it at each call."""
    return plan_linear(problem, platform).rows[0].backend != "torch"


def _passed_over(problem: FusedLinearProblem, platform: Platform) -> list[str]:
    """Why kernels are not used for the linear alone, and for it with its neighbors."""
    plans = select(OP, problem.product, platform), select(FUSED_LINEAR, problem, platform)
    return list(dict.fromkeys(reason for plan in plans for _, reason in plan.passed_over))
