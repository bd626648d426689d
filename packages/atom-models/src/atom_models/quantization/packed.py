"""Weights in a number format, as the checkpoint has them or rounded as they are loaded, where a kernel reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from atom_kernels.formats import WeightFormat
from atom_kernels.linear import FUSED_LINEAR, OP, FusedLinearProblem, LinearProblem
from atom_kernels.plan import Plan
from atom_kernels.platform import Platform
from atom_kernels.select import select
from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError
from atom_models.quantization.dense import Dense, fused_plan, input_format_of, prepare
from atom_models.quantization.scheme import InputFormat, LinearScheme, LinearSpec

# Inputs that kernels take in any format.
_ANY_SIZE = 1024


@dataclass(frozen=True)
class AsStored(LinearScheme):
    """Packed where a kernel reads the format; else plain numbers, which kernels of their own multiply.

    `inputs` is what activations may be rounded to, as in `Packed`.
    """

    inputs: WeightFormat | None = None

    def for_weights(self, spec: LinearSpec, stored: WeightFormat) -> LinearScheme:
        return Packed(stored, self.inputs) if is_packed(spec, stored) else Dense()

    def plan(self, spec: LinearSpec) -> Plan:
        raise TypeError("which weights these are decides `for_weights`")


@dataclass(frozen=True)
class Packed(LinearScheme):
    """Weights in one format; activations may be rounded to that of `inputs`, where there is one."""

    held: WeightFormat
    inputs: WeightFormat | None = None

    def weight_format(self, spec: LinearSpec) -> WeightFormat:
        return self.held

    def input_format(self, spec: LinearSpec) -> InputFormat:
        return input_format_of(fused_plan(spec, self.held, self.inputs))

    def plan(self, spec: LinearSpec) -> Plan:
        return fused_plan(spec, self.held, self.inputs) or _plan(spec, self.held)

    def finish(self, spec: LinearSpec, weights: Mapping[str, torch.Tensor]) -> Callable[..., torch.Tensor]:
        return prepare(self.plan(spec), weights)


@dataclass(frozen=True)
class Rounded(LinearScheme):
    """Plain weights, rounded to a format once they are complete. Linears whose sizes no kernel takes stay plain."""

    held: WeightFormat
    inputs: WeightFormat | None = None

    def for_weights(self, spec: LinearSpec, stored: WeightFormat) -> LinearScheme:
        """Raises UnsupportedQuantizationError where no kernel would take any linear of this machine."""
        if is_packed(spec, self.held):
            return Packed(self.held, self.inputs)
        reason = why_never_packed(self.held, spec.dtype, spec.platform)
        if reason is not None:
            raise UnsupportedQuantizationError(f"weights are not rounded to {self.held.name} here: {reason}")
        return Dense()

    def plan(self, spec: LinearSpec) -> Plan:
        raise TypeError("which weights these are decides `for_weights`")


def is_packed(spec: LinearSpec, weight_format: WeightFormat) -> bool:
    """Whether a kernel reads the format, instead of torch that dequantizes at each call."""
    return fused_plan(spec, weight_format) is not None or _plan(spec, weight_format).rows[0].backend != "torch"


def why_never_packed(weight_format: WeightFormat, dtype: torch.dtype, platform: Platform) -> str | None:
    """Why no kernel of the platform reads the format, whatever the sizes of the linear; None where one does."""
    spec = LinearSpec(_ANY_SIZE, _ANY_SIZE, dtype, False, platform)
    if is_packed(spec, weight_format):
        return None
    # What keeps a kernel from plain weights too says nothing of the format.
    general = {reason for plan in _plans(spec, None) for _, reason in plan.passed_over}
    found = [reason for plan in _plans(spec, weight_format) for _, reason in plan.passed_over]
    reasons = dict.fromkeys(one for one in found if one not in general and not one.startswith("multiplies plain"))
    return "; ".join(reasons) or "there is no kernel for it"


def _plans(spec: LinearSpec, weight_format: WeightFormat | None) -> tuple[Plan, Plan]:
    """Of the linear alone, and with its neighbors."""
    problem = LinearProblem(spec.in_features, spec.out_features, spec.dtype, spec.bias, weight_format=weight_format)
    return select(OP, problem, spec.platform), select(FUSED_LINEAR, FusedLinearProblem(**vars(problem)), spec.platform)


def _plan(spec: LinearSpec, weight_format: WeightFormat) -> Plan:
    return _plans(spec, weight_format)[0]
