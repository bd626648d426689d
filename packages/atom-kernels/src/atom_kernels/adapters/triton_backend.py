"""What adapters add, through Triton: two launches, and nothing that the host has to know of the tokens."""

from __future__ import annotations

import functools
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
MOST_TOKENS = 64
# Elements of A of a program, of a warp, and of B of a program, which is one warp; inputs of a program at a time.
_ELEMENTS_OF_A, _ELEMENTS_OF_WARP, _ELEMENTS_OF_B, _MOST_INPUTS = 16384, 2048, 4096, 16384
# The largest power of two that is looked for in where parts begin: what is loaded at a time is no longer.
_MOST_ALIGNED = 16


def _supports(problem: LowRankProblem, platform: Any) -> str | None:
    return why_not_dtype(problem.dtype, FLOATS)


def shrunk(
    x: torch.Tensor,
    places: torch.Tensor,
    a: torch.Tensor,
    norm_weight: torch.Tensor | None = None,
    norm_offset: float = 0.0,
) -> torch.Tensor:
    """float32 ``[T, R]``: ``A (x * (norm_weight + norm_offset))`` by the A of each row; any numbers without one."""
    from atom_kernels.adapters.triton_kernels import shrink_kernel
    from atom_kernels.triton.support import dependent_launch

    num_places, rows, inputs = a.shape
    inner = torch.empty(len(x), rows, dtype=torch.float32, device=x.device)
    block_r, block_i, num_warps = _blocks_of_a(rows, inputs)
    launch(
        shrink_kernel, (len(x), -(-rows // block_r)),
        x, places, a, norm_weight, inner, x.stride(0), norm_offset,
        NUM_PLACES=num_places, INPUTS=inputs, R=rows, BLOCK_R=block_r, BLOCK_I=block_i,
        num_warps=num_warps, **dependent_launch(),
    )  # fmt: skip
    return inner


@functools.cache
def _blocks_of_a(rows: int, inputs: int) -> tuple[int, int, int]:
    """Rows and columns of A of a program, and its warps."""
    block_i = min(power_of_two(inputs), _MOST_INPUTS)
    block_r = min(max(_ELEMENTS_OF_A // block_i, 1), power_of_two(rows))
    return block_r, block_i, max(block_r * block_i // _ELEMENTS_OF_WARP, 1)


def _bind(problem: LowRankProblem, weights: Any) -> Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]:
    from atom_kernels.adapters.triton_kernels import expand_kernel
    from atom_kernels.triton.support import dependent_launch

    a, b, options = weights["a"].contiguous(), weights["b"].contiguous(), dependent_launch()
    ranks = power_of_two(problem.rank)
    block_o = max(_ELEMENTS_OF_B // ranks, _MOST_ALIGNED)
    tiles, aligned = _tiles(problem, block_o), gcd(_MOST_ALIGNED, *problem.parts)
    tiles_n3 = torch.tensor(tiles, dtype=torch.int32, device=a.device)

    def run(y: torch.Tensor, x: torch.Tensor, places: torch.Tensor) -> None:
        problem.check_inputs(y, x)
        if not len(x):
            return
        inner = shrunk(x if x.stride(-1) == 1 else x.contiguous(), places, a)
        launch(
            expand_kernel, (len(x), len(tiles)), y, inner, places, b, tiles_n3, y.stride(0),
            NUM_PLACES=problem.num_places, OUTPUTS=problem.out_features, R=problem.num_rows_of_a, RANK=problem.rank,
            ALIGNED=aligned, BLOCK_R=ranks, BLOCK_O=block_o, num_warps=1, **options,
        )  # fmt: skip

    return run


def _tiles(problem: LowRankProblem, block_o: int) -> list[tuple[int, int, int]]:
    """The part, the first output, and the one behind the last of that part, of each program."""
    return [(part, at, last) for part, (first, last) in enumerate(problem.bounds) for at in range(first, last, block_o)]


BACKEND = Backend(
    name="triton",
    implementation="Triton, A and then B",
    supports=_supports,
    bind=_bind,
    max_rows=MOST_TOKENS,
)
