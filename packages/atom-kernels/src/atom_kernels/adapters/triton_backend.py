"""What adapters add, through Triton: two launches, and nothing that the host has to know of the tokens."""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

import torch

from atom_kernels.adapters.contract import LowRankProblem
from atom_kernels.dtypes import FLOATS, why_not_dtype
from atom_kernels.operator import Backend
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.triton.launch import launch

# Every token reads its adapter's matrices; beyond so many, products over the matrices of all adapters take less.
_MOST_TOKENS = 64
# Elements of A or B of a program, which is one warp: no part of its sums waits for another warp.
_ELEMENTS = 4096
_MOST_INPUTS = 1024
# The largest power of two that is looked for in where parts begin: what is loaded at a time is no longer.
_MOST_ALIGNED = 16


def _supports(problem: LowRankProblem, platform: Any) -> str | None:
    return why_not_dtype(problem.dtype, FLOATS)


def _bind(problem: LowRankProblem, weights: Any) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    from atom_kernels.adapters.triton_kernels import expand_kernel, shrink_kernel
    from atom_kernels.triton.support import dependent_launch

    a, b, options = weights["a"].contiguous(), weights["b"].contiguous(), dependent_launch()
    inputs, rows, rank = problem.in_features, problem.num_rows_of_a, problem.rank
    block_i, ranks = min(power_of_two(inputs), _MOST_INPUTS), power_of_two(rank)
    block_r = min(_ELEMENTS // block_i, power_of_two(rows))
    block_o = max(_ELEMENTS // ranks, _MOST_ALIGNED)
    num_splits, tiles, aligned = -(-inputs // block_i), _tiles(problem, block_o), gcd(_MOST_ALIGNED, *problem.parts)
    tiles_n3 = torch.tensor(tiles, dtype=torch.int32, device=a.device)
    blocks_of_rows, num_tiles = -(-rows // block_r), len(tiles)

    def run(y: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> None:
        problem.check_inputs(y, x)
        num_tokens = len(x)
        if not num_tokens:
            return
        x = x if x.stride(-1) == 1 else x.contiguous()
        sums = torch.empty(num_tokens * num_splits * rows, dtype=torch.float32, device=x.device)
        launch(
            shrink_kernel, (num_tokens, blocks_of_rows, num_splits), x, places, a, sums, x.stride(0),
            NUM_PLACES=problem.num_places, INPUTS=inputs, R=rows, BLOCK_R=block_r, BLOCK_I=block_i,
            num_warps=1, **options,
        )  # fmt: skip
        launch(
            expand_kernel, (num_tokens, num_tiles), y, sums, places, b, tiles_n3, y.stride(0),
            NUM_PLACES=problem.num_places, OUTPUTS=problem.out_features, R=rows, RANK=rank, SPLITS=num_splits,
            ALIGNED=aligned, BLOCK_S=power_of_two(num_splits), BLOCK_R=ranks, BLOCK_O=block_o, num_warps=1, **options,
        )  # fmt: skip

    return run


def _tiles(problem: LowRankProblem, block_o: int) -> list[tuple[int, int, int]]:
    """The part, the first output, and the one behind the last of that part, of each program."""
    return [(part, at, last) for part, (first, last) in enumerate(problem.bounds) for at in range(first, last, block_o)]


BACKEND = Backend(
    name="triton",
    implementation="Triton, A by parts of the inputs, then B",
    supports=_supports,
    bind=_bind,
    max_rows=_MOST_TOKENS,
)
