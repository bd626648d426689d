"""Block sizes of linears of few rows, and a rule for plain weights; `choice` says which serve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atom_kernels.linear.triton.packed_weights import TILE, Packing, packing_of

if TYPE_CHECKING:
    from atom_kernels.linear.contract import LinearProblem

# With so few outputs programs of eight leave most of a GPU idle.
_FEW_OUTPUTS = 512


@dataclass(frozen=True)
class SkinnyConfig:
    """Programs of block_n outputs and a split_k-th of the inputs, block_k inputs at a time.

    Attributes:
        block_m: rows: 1 does without tensor cores.
        num_warps, num_stages: warps of a program, and how many of its loads are in flight.
        prefetch: steps whose weights a program asks for while the kernel before is still running.
        norm_apart: a kernel of its own norms the rows first. Otherwise every program norms all rows that it reads.
        rounds: that kernel also rounds the rows to the problem's `input_format`.
        makes_weights: codes are scaled before the product, not its sums: more work for a weight, less for a row.
    """

    block_m: int
    block_n: int
    block_k: int
    split_k: int = 1
    num_warps: int = 4
    num_stages: int = 4
    prefetch: int = 1
    norm_apart: bool = False
    rounds: bool = False
    makes_weights: bool = False

    def launch(self) -> dict[str, Any]:
        """The kernel's constants."""
        return {
            "BLOCK_M": self.block_m,
            "BLOCK_N": self.block_n,
            "BLOCK_K": self.block_k,
            "SPLIT_K": self.split_k,
            # Where there are tensor cores, Triton pipelines by the number that it gets for the launch.
            "STAGES": self.num_stages if self.block_m == 1 else 1,
            "PREFETCH": self.prefetch,
            "MAKES_WEIGHTS": self.makes_weights,
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
        }


def tuning_key(problem: LinearProblem) -> str:
    """The key of a problem's tuned configurations."""
    gated = " gated" if problem.gated else ""
    packed = "" if problem.is_plain else f" {problem.weight_format.name}"
    to = f" to {problem.out_dtype}" if problem.out_dtype else ""
    return f"{problem.in_features}x{problem.out_features}{gated} {problem.dtype}{packed}{to}".replace("torch.", "")


def default_config(problem: LinearProblem, num_rows: int) -> SkinnyConfig:
    """Small enough for any GPU, with enough programs for a large one: more blocks first, and then more splits."""
    if not problem.is_plain:
        return _default_of_packed(problem, num_rows)
    if num_rows == 1 and problem.weight_rows <= _FEW_OUTPUTS:
        # Routers: many programs with few steps each.
        return SkinnyConfig(1, 2, 1024, 1, 4, 1, prefetch=4)
    if num_rows == 1:
        return SkinnyConfig(1, 4 if problem.gated else 8, 512, 1, 4, 1)
    block_m = 16 if num_rows <= 16 else 32
    if problem.dtype.itemsize == 4:
        # Float32 products do not use tensor cores; routers have few outputs, so that splits make the programs.
        return SkinnyConfig(block_m, 16, 32, _splits(problem, 16, 32, programs=240, most=32), 4, 2)
    return SkinnyConfig(block_m, 64, 64, _splits(problem, 64, 64, programs=120, most=8), 4, 3)


def _default_of_packed(problem: LinearProblem, num_rows: int) -> SkinnyConfig:
    if num_rows == 1:
        return SkinnyConfig(1, 4 if problem.gated else 8, 1024, 1, 4, 1)
    block_m, block_n = 16 if num_rows <= 16 else 32, 64
    block_k = block_of_inputs(packing_of(problem.weight_format, problem.in_features), 128)
    split = _splits(problem, block_n, block_k, programs=240, most=8)
    return SkinnyConfig(block_m, block_n, block_k, split, 4, 3, 1)


def block_of_inputs(packing: Packing, wanted: int) -> int:
    """The inputs of a step for tensor cores: whole tiles of words, or at most a group of bytes."""
    if packing.is_planar:
        return TILE if packing.group % TILE else max(wanted // TILE * TILE, TILE)
    return math.gcd(wanted, packing.group)


def _splits(problem: LinearProblem, block_n: int, block_k: int, *, programs: int, most: int) -> int:
    """The least power of two that gives `programs` programs; at most `most`, and no more than there are steps."""
    blocks, steps = -(-problem.out_features // block_n), -(-problem.in_features // block_k)
    split = 1
    while split < most and blocks * split < programs:
        split *= 2
    return min(split, steps)
