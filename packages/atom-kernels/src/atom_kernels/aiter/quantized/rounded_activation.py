"""silu(gate) * up that rounds groups of its rows to float8 in the same kernel, in sources from git."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.quantized.linears import HALVES, aligned
from atom_kernels.operator import Backend
from atom_kernels.rounded_rows import empty_rows

if TYPE_CHECKING:
    from atom_kernels.activation.rounded import RoundedActivationProblem
    from atom_kernels.platform import Platform

_FUNCTION, _GROUP = "silu_and_mul_quant", 128
_LONGEST = 8192
# Threads take 24 elements each between these sizes, which groups of 128 are no multiple of.
_MISSED_ABOVE, _MISSED_UP_TO = 4096, 6144


def _supports(problem: RoundedActivationProblem, platform: Platform) -> str | None:
    gated, group = problem.gated, problem.rounding.group
    if gated.activation != "silu":
        return f"{_FUNCTION} computes silu, not {gated.activation}"
    if gated.dtype not in HALVES:
        return f"{_FUNCTION} is called for bfloat16 and float16, not {gated.dtype}"
    if group != _GROUP:
        return f"{_FUNCTION} rounds groups of {_GROUP}, not {'whole rows' if group is None else f'of {group}'}"
    size = gated.intermediate_size
    if size % _GROUP or size > _LONGEST:
        return f"{_FUNCTION} takes whole groups of {_GROUP}, and {_LONGEST} elements at most, not {size}"
    if _MISSED_ABOVE < size <= _MISSED_UP_TO:
        return f"between {_MISSED_ABOVE} and {_MISSED_UP_TO} elements {_FUNCTION} misses parts of its groups"
    return api_of(platform).why_not(_FUNCTION)


def _bind(problem: RoundedActivationProblem, weights: Any) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    activate = library().bind(
        _FUNCTION, "out", "input", "scale", group_size=_GROUP, limit=0.0, shuffle_scale=problem.rounding.by_column
    )

    def run(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        problem.gated.check_input(x)
        codes, scale = empty_rows(x, problem.gated.intermediate_size, problem.rounding)
        if codes.numel():
            activate(codes, aligned(x.contiguous()), scale)
        return codes, scale

    return run


BACKEND = Backend(name="aiter", implementation=f"AITER {_FUNCTION}", supports=_supports, bind=_bind)
