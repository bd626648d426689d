"""Which configurations serve a linear of few rows: tuned ones, those of a shape near by, or a rule's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from atom_kernels.formats import Codes
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.choice.launch_model import best_split
from atom_kernels.linear.triton.choice.plain import plain_configs
from atom_kernels.linear.triton.packed_weights import TILE, packing_of
from atom_kernels.linear.triton.rounded_rows import may_round
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, block_of_inputs, default_config, tuning_key
from atom_kernels.platform import Platform
from atom_kernels.triton.limits import fitting
from atom_kernels.tuned import TunedRow, tuned_on_arch, tuned_rows
from atom_kernels.tuned.sizes import sizes

_OPERATOR = "linear"
# Numbers of rows with a configuration each.
_ROWS = (1, 16, 32)
_PACKED_ROWS = (1, 16, 32, 64, 128)
# More rows in fp8 are left to cuBLAS where the weight has tiles, or the product ends in an activation.
_MOST_ROUNDED = 64
# Shapes are near each other where neither side is longer than so many times the other's.
_NEAR = 1.15
# Codes are scaled before the product where it has so many rows, or where a step has several groups.
_SCALED_CODES = 64
# Rows beyond those of few rows in which a weight is decoded inside the product, and its tile.
_MANY_ROWS, _MANY = (256, 512), (128, 128, 128, 8, 4)
# The inputs above which a program of one row takes long steps, and those above which tensor cores decode int4 sooner:
# 14336 in 15.3 us instead of 18.4 on an H200, where 4096 took 7.1 instead of 6.2.
_MANY_INPUTS, _MANY_FOR_TENSOR_CORES = 8192, 12288


def _by_rows(table: str) -> dict[int, tuple[int, ...]]:
    return dict(zip(_PACKED_ROWS[1:], sizes(table), strict=True))


# block_m, block_n, block_k, num_warps, num_stages, by the most rows.
_WORDS = _by_rows("16x64x128x4x6 32x64x128x4x6 64x64x128x4x4 128x64x128x4x3")
# Groups of whole tiles are scaled after the product: few rows take long steps.
_WORDS_OF_LONG_GROUPS = _WORDS | {16: (16, 64, 512, 4, 3)}
_BYTES = _by_rows("16x64x128x4x8 32x64x128x4x5 64x64x128x4x4 128x64x128x4x3")
_ROUNDED = _by_rows("16x64x128x4x6 32x64x128x4x6 64x64x128x4x5 64x64x128x4x5")
_ROUNDED_IN_TILES = _by_rows("16x64x128x4x6 32x64x128x4x5 32x64x128x4x5 32x64x128x4x5")


def skinny_configs(problem: LinearProblem, platform: Platform) -> dict[int, SkinnyConfig]:
    """Configurations by the most rows that each serves, rising; for more rows (for all if empty) cuBLAS is faster."""
    key = tuning_key(problem)
    tuned = tuned_rows(_OPERATOR, key, platform.name)
    if tuned is None:
        tuned = tuned_on_arch(_OPERATOR, platform.arch).get(key)
    if tuned is not None:
        return {row.max_rows: SkinnyConfig(**row.config) for row in tuned if row.max_rows is not None}
    if problem.is_plain:
        return plain_configs(problem, platform)
    if problem.dtype is torch.float32:
        return {rows: packed_config(problem, rows, platform) for rows in _ROWS}
    one_scale = packing_of(problem.weight_format, problem.in_features).is_one_scale_a_row(problem.in_features)
    is_left = may_round(problem, platform) and (problem.gated or not one_scale)
    most = _MOST_ROUNDED if is_left else _PACKED_ROWS[-1]
    near = near_by(key, tuned_on_arch(_OPERATOR, platform.arch))
    return {rows: packed_config(problem, rows, platform, near) for rows in _PACKED_ROWS if rows <= most}


def packed_config(
    problem: LinearProblem, num_rows: int, platform: Platform, near: Sequence[TunedRow] = ()
) -> SkinnyConfig:
    """The configuration of a packed weight that nobody tuned.

    Args:
        near: what was tuned for a shape near by, whose blocks are then considered too.
    """
    if num_rows == 1 and not _is_one_for_tensor_cores(problem, platform):
        return _of_one_row(problem)
    if problem.dtype is torch.float32:
        return default_config(problem, num_rows)
    num_rows = max(num_rows, _PACKED_ROWS[1])
    tiles = [_tile(problem, num_rows, platform)]
    found = next((SkinnyConfig(**row.config) for row in near if row.max_rows == num_rows), None)
    if found is not None and found.rounds == tiles[0].rounds:
        tiles.append(replace(found, norm_apart=True))
    return best_split(problem, tiles, num_rows, platform)


def many_rows_configs(problem: LinearProblem, platform: Platform) -> dict[int, SkinnyConfig]:
    """Configurations in which a weight is decoded inside products of many rows; it is made plain for more."""
    if problem.dtype is torch.float32:
        return {}
    packing = packing_of(problem.weight_format, problem.in_features)
    block_m, block_n, block_k, num_warps, num_stages = _MANY
    tile = SkinnyConfig(
        block_m, block_n, block_of_inputs(packing, block_k), 1, num_warps, num_stages, norm_apart=True,
        makes_weights=True,
    )  # fmt: skip
    tile = _fitting(problem, tile)
    return {rows: best_split(problem, [tile], rows, platform) for rows in _MANY_ROWS}


def near_by(key: str, tuned: Mapping[str, tuple[TunedRow, ...]]) -> tuple[TunedRow, ...]:
    """The rows of the nearest key of the same kind, () where none is near."""
    inputs, outputs, kind = _parts(key)

    def distance(other: str) -> float:
        other_inputs, other_outputs, other_kind = _parts(other)
        if other_kind != kind:
            return float("inf")
        ratios = (inputs / other_inputs, outputs / other_outputs)
        return max(max(ratio, 1 / ratio) for ratio in ratios)

    nearest = min(tuned, key=distance, default=None)
    return tuned[nearest] if nearest is not None and distance(nearest) <= _NEAR else ()


def _parts(key: str) -> tuple[int, int, str]:
    """Inputs, outputs and all else of a tuning key."""
    found = re.fullmatch(r"(\d+)x(\d+)(.*)", key)
    if found is None:
        raise ValueError(f"{key!r} is no key of a linear: INPUTSxOUTPUTS and its kind")
    return int(found[1]), int(found[2]), found[3]


def _is_one_for_tensor_cores(problem: LinearProblem, platform: Platform) -> bool:
    """Whether one row is multiplied as 16 are: of many inputs, whose sums are split, codes are then decoded sooner."""
    packing = packing_of(problem.weight_format, problem.in_features)
    is_int4 = problem.weight_format.codes is Codes.INT4 and packing.group % TILE == 0
    many = problem.in_features > _MANY_FOR_TENSOR_CORES and not problem.gated
    return is_int4 and many and problem.dtype is torch.bfloat16 and platform.vendor == "nvidia"


def _of_one_row(problem: LinearProblem) -> SkinnyConfig:
    """A program has few outputs, and steps that a row of the weight does not overhang by much."""
    packing = packing_of(problem.weight_format, problem.in_features)
    many = problem.in_features > _MANY_INPUTS
    if packing.is_planar:
        overhangs = -problem.in_features % 2048 > -problem.in_features % 1024 + problem.in_features // 10
        return SkinnyConfig(1, 4, 1024, 1, 1, 1, 3) if overhangs else SkinnyConfig(1, 4, 2048, 1, 2, 1, 3)
    if packing.is_one_scale_a_row(problem.in_features):
        return SkinnyConfig(1, 8, 1024 if many else 512, 1, 4 if many else 2, 3, 3)
    return SkinnyConfig(1, 2 if problem.gated else 4, 512, 1, 2, 1, 3)


def _tile(problem: LinearProblem, num_rows: int, platform: Platform) -> SkinnyConfig:
    packing, rounds = packing_of(problem.weight_format, problem.in_features), may_round(problem, platform)
    if rounds:
        table = _ROUNDED if packing.is_one_scale_a_row(problem.in_features) else _ROUNDED_IN_TILES
    else:
        words = _WORDS if packing.group % TILE else _WORDS_OF_LONG_GROUPS
        table = words if packing.is_planar else _BYTES
    block_m, block_n, block_k, num_warps, num_stages = table[num_rows]
    tile = SkinnyConfig(
        block_m, block_n, block_of_inputs(packing, block_k), 1, num_warps, num_stages, 3 if block_k <= TILE else 1,
        norm_apart=True, rounds=rounds,
        makes_weights=not rounds and (num_rows >= _SCALED_CODES or (packing.is_planar and packing.group < TILE)),
    )  # fmt: skip
    return _fitting(problem, tile)


def _fitting(problem: LinearProblem, tile: SkinnyConfig) -> SkinnyConfig:
    """The tile with as many loads in flight as a processor's memory holds."""
    itemsize = 1 if tile.rounds else problem.dtype.itemsize
    code_bytes = (0.5 if problem.weight_format.codes.is_packed else 1.0) * (2 if problem.gated else 1)

    def loaded(tile: SkinnyConfig) -> int:
        return int(tile.block_k * (tile.block_m * itemsize + tile.block_n * code_bytes))

    return fitting(tile, "block_m", loaded)
