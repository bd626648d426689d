"""Rotation on AITER, in place on copies of queries and keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.api import api_of
from atom_kernels.aiter.library import library
from atom_kernels.aiter.tables import cos_sin_tables
from atom_kernels.operator import Backend, Tolerance

if TYPE_CHECKING:
    from atom_kernels.platform import Platform
    from atom_kernels.rotary.contract import RotaryProblem

NEOX, GPT_J = 0, 1
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def _supports(problem: RotaryProblem, platform: Platform) -> str | None:
    if problem.dtype not in _DTYPES:
        return f"rotates bfloat16, float16 and float32, not {problem.dtype}"
    if problem.mrope_section:
        return "takes one position a token, not three"
    return api_of(platform).why_not("rope_cached_positions_2c_fwd_inplace")


def _bind(problem: RotaryProblem, weights: Any) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    rotary_dim = problem.rotary_dim
    rotate = library().bind(
        "rope_cached_positions_2c_fwd_inplace", "input_x", "input_y", "cos", "sin", "positions",
        rotate_style=GPT_J if problem.interleaved else NEOX, reuse_freqs_front_part=True, nope_first=False,
    )  # fmt: skip

    def run(
        q_THD: torch.Tensor, k_TKD: torch.Tensor, positions_T: torch.Tensor, cos_sin_cache_PR: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        q_THD, k_TKD = (x.clone(memory_format=torch.contiguous_format) for x in (q_THD, k_TKD))
        if q_THD.shape[0]:
            cos, sin = cos_sin_tables(cos_sin_cache_PR, q_THD.dtype)
            # One sequence of all tokens: [s, b, h, d] with s = 1.
            turning = (x[None, ..., :rotary_dim] for x in (q_THD, k_TKD))
            rotate(*turning, cos, sin, positions_T.long()[None].contiguous())
        return q_THD, k_TKD

    return run


def _tolerance(problem: RotaryProblem) -> Tolerance:
    """AITER rounds angles to the dtype, where our contract keeps float32: an error of up to 2 parts in 2^p."""
    return {
        torch.float32: Tolerance(1e-5, 1e-5),
        torch.float16: Tolerance(5e-3, 2e-3),
        torch.bfloat16: Tolerance(4e-2, 1.6e-2),
    }[problem.dtype]


BACKEND = Backend(
    name="aiter",
    implementation="AITER rope_cached_positions_2c",
    supports=_supports,
    bind=_bind,
    tolerance=_tolerance,
)
