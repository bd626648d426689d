"""The backend of linears over packed weights whose rows must have the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from atom_kernels.dtypes import FLOATS, unplanned, why_not_dtype
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.packed_product import why_not_read
from atom_kernels.linear.triton.packed_weights import PACKED_LAYOUT, packing_of
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, block_of_inputs
from atom_kernels.operator import Backend

# The rows of a tile, each with the warps of a program and its loads in flight. One program adds up all inputs in their
# order, so that an element is the same sum in a tile of any height.
_HEIGHTS = ((16, 4, 4), (32, 4, 4), (64, 4, 4), (128, 8, 3))
_BLOCK_N, _BLOCK_K = 64, 128


def _supports(problem: LinearProblem, platform: Any) -> str | None:
    if (reason := why_not_read(problem, platform)) is not None:
        return reason
    if not platform.batch_invariant:
        return "slower, and for those who ask for batch invariance"
    return why_not_dtype(problem.dtype, FLOATS)


def _bind(problem: LinearProblem, weights: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    from atom_kernels.linear.triton.skinny_linear import SkinnyLinear

    block_k = block_of_inputs(packing_of(problem.weight_format, problem.in_features), _BLOCK_K)
    heights = _HEIGHTS[:1] if problem.dtype is torch.float32 else _HEIGHTS
    by_height = {
        rows: SkinnyLinear(
            problem, weights, SkinnyConfig(rows, _BLOCK_N, block_k, 1, warps, stages, makes_weights=True)
        )
        for rows, warps, stages in heights
    }  # fmt: skip
    highest = max(by_height)

    def run(x: torch.Tensor) -> torch.Tensor:
        if x.dtype is not problem.dtype or x.shape[-1] != problem.in_features:
            raise unplanned("linear", x, problem.in_features, problem.dtype)
        rows = x.reshape(-1, problem.in_features)
        product = by_height[next((height for height in by_height if rows.shape[0] <= height), highest)]
        return product(rows).view(*x.shape[:-1], problem.out_features)

    return run


PACKED_BATCH_INVARIANT_BACKEND = Backend(
    name="triton",
    implementation="Triton, packed weights, sums in one order for any rows",
    supports=_supports,
    bind=_bind,
    layout=PACKED_LAYOUT,
)
