"""Linears with their neighbors through Triton for few rows, and through cuBLAS between Triton kernels for many."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from atom_kernels.adapters.contract import LowRankTerm
from atom_kernels.adapters.triton_backend import MOST_TOKENS
from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.linear.composed import composed
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.dense import DENSE_BACKEND
from atom_kernels.linear.triton.choice.configs import skinny_configs
from atom_kernels.linear.triton.packed_product import packed_linear, why_not_read
from atom_kernels.linear.triton.packed_weights import PACKED_LAYOUT
from atom_kernels.linear.triton.skinny_linear import SkinnyLinear
from atom_kernels.operator import Backend
from atom_kernels.platform import detect_platform


def _supports(problem: LinearProblem, platform: Any) -> str | None:
    return problem.why_not_plain() or _why_not(problem, platform)


def _supports_packed(problem: LinearProblem, platform: Any) -> str | None:
    return why_not_read(problem, platform) or _why_not(problem, platform)


def _why_not(problem: LinearProblem, platform: Any) -> str | None:
    if platform.batch_invariant:
        return "a row's sums depend on how many rows there are"
    return why_not_dtype(problem.dtype, FLOATS)


def _why_not_skinny(problem: LinearProblem, platform: Any) -> str | None:
    if problem.dtype is torch.float16:
        return "float16 may overflow where the norm's scale comes after the product"
    if not skinny_configs(problem, platform):
        return f"cuBLAS is faster for every number of rows, measured on {platform.name}"
    return None


def _max_rows(problem: LinearProblem, platform: Any) -> int:
    return max(skinny_configs(problem, platform))


def _bind_skinny(problem: LinearProblem, weights: Any) -> Callable[..., torch.Tensor]:
    configs = skinny_configs(problem, detect_platform())
    launches = {rows: SkinnyLinear(problem, weights, config, rows) for rows, config in configs.items()}
    most = max(launches)
    by_rows = [launches[min(limit for limit in launches if rows <= limit)] for rows in range(most + 1)]

    # More tokens that have adapters are left to operators one after the other.
    in_steps = cache(lambda: _bind_composed(problem, weights))

    def run(
        x: torch.Tensor,
        norm_weight: torch.Tensor | None = None,
        eps: float = 0.0,
        norm_offset: float = 0.0,
        residual: torch.Tensor | None = None,
        row_scale: torch.Tensor | None = None,
        low_rank: LowRankTerm | None = None,
    ) -> torch.Tensor:
        num_rows = x.shape[0]
        if row_scale is not None or (low_rank is not None and num_rows > MOST_TOKENS):
            return in_steps()(x, norm_weight, eps, norm_offset, residual, row_scale, low_rank)
        linear = by_rows[min(num_rows, most)]
        return linear(x, norm_weight, eps, norm_offset, residual, low_rank)

    return run


def _bind_composed(problem: LinearProblem, weights: Any) -> Callable[..., torch.Tensor]:
    from atom_kernels.norm.triton_backend import rms_norm_by_triton

    bind = DENSE_BACKEND.bind if problem.is_plain else packed_linear
    linear = bind(problem.product, weights)
    normed = None if problem.is_plain else linear
    return composed(problem, linear, norm=rms_norm_by_triton, normed_linear=normed, activation_backend="triton")


SKINNY_BACKEND = Backend(
    name="triton",
    implementation="Triton, the weight passes once",
    supports=lambda problem, platform: _supports(problem, platform) or _why_not_skinny(problem, platform),
    bind=_bind_skinny,
    max_rows=_max_rows,
    takes_neighbors=True,
)
PACKED_SKINNY_BACKEND = Backend(
    name="triton",
    implementation="Triton, the packed weight passes once",
    supports=lambda problem, platform: _supports_packed(problem, platform) or _why_not_skinny(problem, platform),
    bind=_bind_skinny,
    layout=PACKED_LAYOUT,
    max_rows=_max_rows,
    takes_neighbors=True,
)
PACKED_COMPOSED_BACKEND = Backend(
    name="triton",
    implementation="fp8 product of rounded rows, or the weight made plain, between Triton kernels",
    supports=_supports_packed,
    bind=_bind_composed,
    layout=PACKED_LAYOUT,
    takes_neighbors=True,
)
COMPOSED_BACKEND = Backend(
    name="triton",
    implementation="torch linear between Triton kernels",
    supports=_supports,
    bind=_bind_composed,
    takes_neighbors=True,
)
