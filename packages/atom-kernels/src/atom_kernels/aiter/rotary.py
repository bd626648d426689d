"""Rotation on AITER, in place on copies of queries and keys; tables of cosines and sines in its form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

from atom_kernels.aiter.library import library
from atom_kernels.operator import Backend, Tolerance

if TYPE_CHECKING:
    from atom_kernels.platform import Platform
    from atom_kernels.rotary.contract import RotaryProblem

NEOX, GPT_J = 0, 1
_DTYPES = (torch.bfloat16, torch.float16, torch.float32)

# Keyed by table of `rope_cos_sin`, then by dtype: models make one table and keep it.
_tables: WeakIdKeyDictionary = WeakIdKeyDictionary()


def cos_sin_tables(cos_sin_cache_PR: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The two halves of a table of `rope_cos_sin`, each contiguous ``[P, 1, 1, R/2]`` in `dtype`.

    AITER wants them in the dtype of the queries and keys. They are made once for each table, whose values must not
    change; the first call for one must come before a graph is captured.
    """
    by_dtype: dict[torch.dtype, tuple[torch.Tensor, torch.Tensor]] | None = _tables.get(cos_sin_cache_PR)
    if by_dtype is None:
        by_dtype = _tables[cos_sin_cache_PR] = {}
    if dtype not in by_dtype:
        cos, sin = (half[:, None, None, :].contiguous() for half in cos_sin_cache_PR.to(dtype).chunk(2, dim=-1))
        by_dtype[dtype] = cos, sin
    return by_dtype[dtype]


def _supports(problem: RotaryProblem, platform: Platform) -> str | None:
    if platform.aiter is None:
        return "no AITER"
    if problem.dtype not in _DTYPES:
        return f"rotates bfloat16, float16 and float32, not {problem.dtype}"
    if problem.mrope_section:
        return "takes one position a token, not three"
    return platform.aiter.why_not("rope_cached_positions_2c_fwd_inplace")


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
