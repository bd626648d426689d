"""Configurations of plain weights that nobody tuned."""

from __future__ import annotations

from functools import partial

from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.choice.launch_model import best_split, library_seconds, seconds
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, default_config
from atom_kernels.platform import Platform
from atom_kernels.tuned.sizes import sizes

# Numbers of rows with a configuration each whatever the library does.
_FEW_ROWS = (1, 16, 32)
# The most rows that programs norm for themselves.
_NORMS_INSIDE = 16
# block_m, block_n, block_k, num_warps, num_stages, by the most rows: what was best of 49 for some shape or other.
_TILES = {
    16: sizes("16x64x256x4x3 16x64x128x4x5 16x128x128x8x3"),
    32: sizes("32x64x128x4x5 16x64x128x4x6 16x64x256x4x4 32x128x128x8x3"),
    64: sizes("64x64x128x4x4 64x64x64x4x8 32x64x128x4x4"),
    128: sizes("128x64x64x8x8 128x128x64x8x4 128x64x128x4x3 64x64x128x4x4 32x64x128x4x4"),
}
# Where the steps of those would overhang the inputs.
_SHORT_STEPS = {16: sizes("16x64x64x4x8"), 32: sizes("32x64x64x4x8")}
# Programs for each processor: with fewer, no split was measured; a few more than one leave most waiting for the others.
_LEAST_FILLED, _FEW_MORE = 0.68, 1.3
# Bytes of weights that a program asks for while the kernel before still runs.
_AHEAD_BYTES = 32768
# One row: with so many inputs and few outputs, two programs share an output.
_MANY_INPUTS, _FEW_OUTPUTS, _SHARED = range(6144, 12289), range(1024, 4097), SkinnyConfig(1, 16, 512, 2, 4, 1, 2)


def plain_configs(problem: LinearProblem, platform: Platform) -> dict[int, SkinnyConfig]:
    """Configurations by the most rows that each serves, rising; the library is faster for more."""
    found = {rows: default_config(problem, rows) for rows in _FEW_ROWS}
    if problem.dtype.itemsize != 2 or not platform.num_processors:
        return found
    if not problem.gated and problem.in_features in _MANY_INPUTS and problem.out_features in _FEW_OUTPUTS:
        found[1] = _SHARED
    for rows in _TILES:
        shapes = _whole_steps(problem, rows)
        if not shapes:
            return {few: config for few, config in found.items() if few < rows}
        tiles = [tile for shape in shapes if (tile := _tile(problem, rows, shape, platform)) is not None]
        if not tiles:
            return found
        fills = partial(_fills, problem, platform.num_processors)
        best = best_split(problem, tiles, rows, platform, fills=fills)
        if rows not in found and not _is_quicker(problem, best, rows, platform):
            return found
        found[rows] = best
    return found


def _whole_steps(problem: LinearProblem, rows: int) -> list[tuple[int, ...]]:
    """Shapes of tiles whose steps end where the inputs do."""
    tables = (_TILES[rows], _SHORT_STEPS.get(rows, ()))
    found = ([shape for shape in table if problem.in_features % shape[2] == 0] for table in tables)
    return next(filter(None, found), [])


def _tile(problem: LinearProblem, rows: int, shape: tuple[int, ...], platform: Platform) -> SkinnyConfig | None:
    """A tile of that shape, if a processor's memory holds it."""
    block_m, block_n, block_k, num_warps, num_stages = shape
    itemsize, weight_rows = problem.dtype.itemsize, block_n * (2 if problem.gated else 1)
    if num_stages * block_k * (block_m + weight_rows) * itemsize > platform.local_memory:
        return None
    ahead = max(1, _AHEAD_BYTES // (weight_rows * block_k * itemsize))
    # More rows, and those of two weights, are normed sooner by a kernel of its own than by every program for itself.
    norm_apart = problem.gated or rows > _NORMS_INSIDE
    return SkinnyConfig(block_m, block_n, block_k, 1, num_warps, num_stages, ahead, norm_apart)


def _fills(problem: LinearProblem, num_processors: int, num_programs: int) -> bool:
    each = num_programs / num_processors
    return each >= _LEAST_FILLED and (problem.gated or not 1 < each < _FEW_MORE)


def _is_quicker(problem: LinearProblem, config: SkinnyConfig, rows: int, platform: Platform) -> bool:
    return seconds(problem, config, rows, platform) < library_seconds(problem, rows, platform)
