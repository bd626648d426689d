"""Configurations of plain weights that nobody tuned: their tiles, and into how many parts the inputs are split.

Where one round of programs fills all processors, each has a program to itself, which loads far ahead. Where a processor
gets more, it should run two at a time. A few programs more than processors leave most of these idle at the end. The
tiles are the best of 2,700 launches of 54 random shapes on an H200.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, default_config
from atom_kernels.platform import Platform
from atom_kernels.tuned.sizes import sizes

# Rows, outputs and inputs of a tile, then warps and stages.
Shape = tuple[int, ...]

# The smallest tile of up to 64 rows has so many outputs, and so many inputs.
_SMALLEST = 64
# One round has at least so many programs for each processor, or more if each program has many inputs. Splits that
# cannot make one round make at least `_LEAST_OF_MORE`.
_LEAST_OF_A_ROUND, _LEAST_OF_A_LONG_ROUND, _LONG = 0.68, 0.8, 8192
_LEAST_OF_MORE = 1.3
_MOST_SPLITS = 8
# Up to `_FEW_ROWS` splits that make no round are quicker than the library, and up to the other number parts may have
# fewer steps than a program has on the way.
_FEW_ROWS, _ROWS_OF_SHORT_PARTS = 16, 32
# Shapes by the most rows that they serve, first those for one round, then those for more programs. The first that a
# processor's memory holds is taken.
_PLAIN = {
    16: (sizes("16x64x256x4x3 16x64x128x4x5 16x64x64x4x8"), sizes("16x64x128x4x5 16x64x64x4x8")),
    32: (sizes("32x64x128x4x5 32x64x64x4x8"), sizes("32x64x64x4x8")),
    64: (sizes("64x64x64x4x8"), sizes("64x64x128x4x3")),
}
# With an activation a step reads two weights.
_GATED = {
    16: (sizes("16x64x128x4x5 16x64x64x4x8"),) * 2,
    32: (sizes("32x64x128x4x5 32x64x64x4x8"),) * 2,
    64: (sizes("64x64x128x4x4 64x64x64x4x8"),) * 2,
}
# Up to `_MOST_ROWS` these tiles are quicker than the library if their programs make at most so many rounds, and whole
# ones: with at least `_WHOLE` of the programs that would fill them. The key says whether there is an activation.
_MOST_ROWS, _WHOLE = 128, 0.8
_ROUNDS = {
    False: ((1, (128, 64, 64, 8, 8)),),
    True: ((2, (128, 128, 64, 8, 4)), (1, (128, 64, 128, 4, 3)), (1, (64, 64, 128, 4, 4))),
}
# Programs with so long steps norm their rows themselves. With shorter ones each step would wait for the norm.
_NORMED_STEP = 256
# Bytes of weights that a program asks for while the kernel before still runs.
_AHEAD_BYTES = 32768
# One row has rules of its own. Two programs share an output where inputs are many and outputs few. Small programs are
# made where there would be a few more of them than processors. Heads have so many that tensor cores are quickest.
_MANY_INPUTS, _FEW_OUTPUTS = range(6144, 12289), range(1024, 4097)
_FEW_MORE = 1.6
_HEAD, _PROGRAMS_OF_A_HEAD = (16, 128, 128, 8, 3), 2.5


def plain_configs(problem: LinearProblem, platform: Platform) -> dict[int, SkinnyConfig]:
    """Configurations by the most rows that each serves, rising; the library is faster for more."""
    found = {rows: default_config(problem, rows) for rows in (1, 16, 32)}
    if problem.dtype.itemsize != 2 or not platform.num_processors:
        return found
    found[1] = _of_one_row(problem, platform) or found[1]
    if problem.in_features % _SMALLEST:
        return {1: found[1]}
    if _MOST_SPLITS * _each(problem, (1, _SMALLEST), 1, platform) < _LEAST_OF_A_ROUND:
        return found
    for rows, kinds in (_GATED if problem.gated else _PLAIN).items():
        one_round, more = (next((one for one in kind if _fits(problem, one, platform)), None) for kind in kinds)
        if one_round is None or more is None:
            return found
        config = _of_one_round(problem, rows, one_round, platform) or _of_more(problem, rows, more, platform)
        if config is not None:
            found[rows] = config
        elif rows > _FEW_ROWS:
            return {few: config for few, config in found.items() if few < rows}
    last = _of_whole_rounds(problem, platform)
    return found if last is None else found | {_MOST_ROWS: last}


def _of_one_row(problem: LinearProblem, platform: Platform) -> SkinnyConfig | None:
    """None for the one of all platforms, whose programs have eight outputs, or four under an activation."""
    inputs, each = problem.in_features, _each(problem, (1, 8), 1, platform)
    if problem.gated:
        # So few inputs take one or two long steps in less time than several short ones.
        return SkinnyConfig(1, 8, 1024, 1, 4, 1, 1) if inputs in (1024, 2048) else None
    if inputs in _MANY_INPUTS and problem.out_features in _FEW_OUTPUTS:
        return SkinnyConfig(1, 16, 512, 2, 4, 1, 2)
    if 1 < each < _FEW_MORE:
        return SkinnyConfig(1, 1, 1024, 1, 2, 1, 2)
    is_head = _each(problem, _HEAD, 1, platform) >= _PROGRAMS_OF_A_HEAD and _fits(problem, _HEAD, platform)
    return _config(problem, 1, _HEAD, 1) if is_head else None


def _of_one_round(problem: LinearProblem, rows: int, shape: Shape, platform: Platform) -> SkinnyConfig | None:
    """The fewest splits of those that make one round, and whose parts then have the fewest steps."""
    each = _each(problem, shape, rows, platform)
    found = [
        (_steps(problem, shape, split), split)
        for split in _splits(problem, shape, rows)
        if _least_of_a_round(problem, split) <= split * each <= 1
    ]
    return _config(problem, rows, shape, min(found)[1]) if found else None


def _of_more(problem: LinearProblem, rows: int, shape: Shape, platform: Platform) -> SkinnyConfig | None:
    """As few splits as make more programs than a round has; None where the library is quicker."""
    each = _each(problem, shape, rows, platform)
    if each > 1:
        return _config(problem, rows, shape, 1)
    enough = (split for split in _splits(problem, shape, rows) if split * each >= _LEAST_OF_MORE)
    split = next(enough, None) if rows <= _FEW_ROWS else None
    return None if split is None else _config(problem, rows, shape, split)


def _of_whole_rounds(problem: LinearProblem, platform: Platform) -> SkinnyConfig | None:
    for most, shape in _ROUNDS[problem.gated]:
        each = _each(problem, shape, _MOST_ROWS, platform)
        rounds = math.ceil(each)
        if rounds <= most and each >= _WHOLE * rounds and _fits(problem, shape, platform):
            return _config(problem, _MOST_ROWS, shape, 1)
    return None


def _each(problem: LinearProblem, shape: Shape, rows: int, platform: Platform) -> float:
    """Programs for each processor where inputs are not split."""
    programs = math.ceil(rows / shape[0]) * math.ceil(problem.out_features / shape[1])
    return programs / platform.num_processors


def _least_of_a_round(problem: LinearProblem, split: int) -> float:
    return _LEAST_OF_A_LONG_ROUND if problem.in_features > split * _LONG else _LEAST_OF_A_ROUND


def _splits(problem: LinearProblem, shape: Shape, rows: int) -> Iterator[int]:
    """Numbers of parts that have enough inputs: of many rows so many steps as are on the way at a time."""
    _, _, block_k, _, num_stages = shape
    least = block_k * (1 if rows <= _ROWS_OF_SHORT_PARTS else num_stages)
    return (split for split in range(1, _MOST_SPLITS + 1) if split == 1 or split * least <= problem.in_features)


def _steps(problem: LinearProblem, shape: Shape, split: int) -> int:
    return math.ceil(problem.in_features / (shape[2] * split))


def _fits(problem: LinearProblem, shape: Shape, platform: Platform) -> bool:
    """Whether a processor's memory holds the steps that are on the way."""
    block_m, block_n, block_k, _, num_stages = shape
    step = block_k * (block_m + block_n * _num_weights(problem)) * problem.dtype.itemsize
    return num_stages * step <= platform.local_memory


def _config(problem: LinearProblem, rows: int, shape: Shape, split: int) -> SkinnyConfig:
    block_m, block_n, block_k, num_warps, num_stages = shape
    ahead = max(1, _AHEAD_BYTES // (block_n * _num_weights(problem) * block_k * problem.dtype.itemsize))
    norm_apart = rows > 1 and block_k < _NORMED_STEP
    return SkinnyConfig(block_m, block_n, block_k, split, num_warps, num_stages, ahead, norm_apart)


def _num_weights(problem: LinearProblem) -> int:
    return 2 if problem.gated else 1
