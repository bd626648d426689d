"""From the formats that experts are to hold their weights in to the problem of one layer's experts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from atom_kernels.formats import WeightFormat
from atom_kernels.moe import ExpertsProblem
from atom_kernels.moe.ops import MOE_EXPERTS
from atom_kernels.native import native_unavailable
from atom_kernels.plan import Plan
from atom_kernels.platform import Platform
from atom_kernels.select import select
from atom_models.checkpoint.quantization_config import UnsupportedQuantizationError

# Sizes that kernels take in any format.
_ANY_SIZE = 1024


def packed_experts(
    plain: ExpertsProblem,
    formats: Mapping[str, WeightFormat | None],
    platform: Platform,
    *,
    rounded: bool,
    input_format: WeightFormat | None = None,
) -> ExpertsProblem:
    """The problem of experts of plain weights, with the formats in which they hold their matrices.

    Torch makes plain numbers of packed experts at each call, which is slower than plain ones: where no kernel reads
    both formats, the experts are plain.

    Args:
        formats: of gate_up and down; None is plain.
        rounded: plain weights are to be rounded to them, as was asked for.
        input_format: what activations may be rounded to, None is not at all.

    Raises:
        UnsupportedQuantizationError: weights are to be rounded to a format that no kernel of this machine reads.
    """
    gate_up, down = formats["gate_up"], formats["down"]
    if gate_up is None or down is None:
        return plain
    problem = replace(plain, gate_up_format=gate_up, down_format=down, input_format=input_format)
    if _has_kernel(problem, platform):
        return problem
    if rounded and (reason := why_experts_never_packed(gate_up, plain.dtype, platform)) is not None:
        raise UnsupportedQuantizationError(f"experts are not rounded to {gate_up.name} here: {reason}")
    return plain


def why_experts_never_packed(
    weight_format: WeightFormat,
    dtype: torch.dtype,
    platform: Platform,
    *,
    input_format: WeightFormat | None = None,
) -> str | None:
    """Why no kernel of the platform reads experts in the format, whatever their sizes; None where one does.

    Args:
        input_format: what activations may be rounded to: some kernels want to.
    """
    plain = ExpertsProblem(2, 1, _ANY_SIZE, _ANY_SIZE, dtype)
    packed = replace(plain, gate_up_format=weight_format, down_format=weight_format, input_format=input_format)
    if _has_kernel(packed, platform):
        return None
    # What keeps a kernel from plain experts too says nothing of the format.
    general = _passed_over(select(MOE_EXPERTS, plain, platform))
    reasons = [one for one in _passed_over(select(MOE_EXPERTS, packed, platform)) if one not in general]
    special = [one for one in reasons if not one.startswith("multiplies plain")]
    without = native_unavailable("moe_quantized") if platform.device == "cpu" else None
    return "; ".join(special) or without or "there is no kernel for it"


def _has_kernel(problem: ExpertsProblem, platform: Platform) -> bool:
    return select(MOE_EXPERTS, problem, platform).rows[0].backend != "torch"


def _passed_over(plan: Plan) -> list[str]:
    return list(dict.fromkeys(reason for _, reason in plan.passed_over))
