"""Tuning of linears of few rows with their neighbors: candidates by shape and number of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from atom_kernels.formats import Float8, Integers
from atom_kernels.formats import num_bytes as format_bytes
from atom_kernels.linear.contract import LinearProblem
from atom_kernels.linear.triton.backend import COMPOSED_BACKEND, PACKED_COMPOSED_BACKEND
from atom_kernels.linear.triton.packed_weights import Packing, pack, packing_of
from atom_kernels.linear.triton.skinny_configs import SkinnyConfig, block_of_inputs, tuning_key
from atom_kernels.linear.triton.skinny_linear import SkinnyLinear
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.tuned.graph_timing import num_copies
from atom_kernels.tuned.sizes import sizes
from atom_kernels.tuned.tuner import Subject, Tuning

# block_n, block_k, num_warps
_ONE_ROW = sizes(
    "1x1024x2 2x1024x2 2x2048x4 4x512x2 4x1024x4 4x2048x8 8x512x2 8x512x4 8x1024x4 16x256x4 16x512x4 16x512x8"
)
# block_n, block_k, num_warps, num_stages
_FEW_ROWS = sizes(
    "16x256x4x4 32x128x4x6 32x256x4x3 32x256x4x4 64x64x4x6 64x64x4x8 64x128x4x3 64x128x4x5 64x128x8x3 "
    "64x256x4x3 128x64x4x5 128x128x8x3"
)
# block_m, block_n, block_k, num_warps, num_stages
_MORE_ROWS = sizes(
    "32x64x128x4x4 32x64x128x4x5 64x64x64x4x8 64x64x128x4x3 64x64x128x4x4 64x64x128x8x4 128x32x64x4x4 "
    "128x64x64x8x8 128x64x128x4x3 128x64x128x4x4 128x128x64x8x4"
)
# Packed weights, one row, in bytes and in words: block_n, block_k, num_warps. A thread holds 8 inputs of each step.
_ONE_ROW_OF_BYTES = sizes(
    "1x2048x2 2x1024x2 4x512x2 4x1024x4 8x256x1 8x512x2 8x1024x4 16x256x1 16x256x2 16x512x2 16x512x4"
)
_ONE_ROW_OF_WORDS = sizes(
    "1x1024x1 1x2048x2 1x4096x4 2x1024x1 2x2048x2 2x4096x4 4x1024x1 4x2048x2 4x4096x4 8x1024x1 8x2048x2"
)
# block_n, block_k, num_warps, num_stages
_FEW_ROWS_OF_CODES = sizes(
    "64x128x4x3 64x128x4x4 64x128x4x6 64x128x4x8 64x256x4x3 64x256x4x4 64x256x4x5 128x128x4x4 128x128x4x5 "
    "128x128x8x4 128x128x8x6 128x256x8x3"
)
# block_m, block_n, block_k, num_warps, num_stages
_MORE_ROWS_OF_CODES = sizes(
    "32x64x128x4x4 64x64x128x4x3 64x64x128x4x5 64x128x128x4x3 64x128x128x8x4 128x64x128x4x3 128x64x128x4x5 "
    "128x64x128x8x4 128x128x128x8x3 128x128x128x8x4 64x64x256x4x3 128x64x256x4x3 128x128x128x4x4"
)
# The most rows of one block; more rows are normed by a kernel of their own.
_NORMS_INSIDE = 32
# Bytes of weights that a program prefetches: those of all programs together must stay in the L2 cache.
_AHEAD_BYTES = 32768
# Formats of weights, each with that of rounded inputs.
PACKED = {
    "fp8": (Float8(), Float8()),
    "fp8-block": (Float8(128, 128), Float8(1, 128)),
    "int4": (Integers(4, 128), None),
}
# Programs below which a large GPU is not full, and above which splitting more cannot help.
_FEWEST, _MOST = 90, 1300


def candidates(problem: LinearProblem, num_rows: int) -> list[SkinnyConfig]:
    """Every block with the first splits that fill the GPU, and the norm before inside or apart."""
    # Whether rows are normed and rounded by a kernel of their own.
    before = [(num_rows > _NORMS_INSIDE, False)]
    if is_normed(problem) and 1 < num_rows <= _NORMS_INSIDE:
        before.append((True, False))
    if num_rows > 1 and problem.weight_format == problem.input_format == Float8():
        before = [(True, True)]
    return [
        SkinnyConfig(block_m, block_n, block_k, split, num_warps, num_stages, ahead, norm_apart, rounds)
        for norm_apart, rounds in before
        for block_m, block_n, block_k, num_warps, num_stages in _shapes(problem, num_rows)
        for split, ahead in _splits(problem, -(-num_rows // block_m), block_n, block_k)
    ]


def is_normed(problem: LinearProblem) -> bool:
    """In a model, projections to more features follow a norm; those back to fewer add the residual."""
    return problem.gated or problem.out_features > problem.in_features


def _shapes(problem: LinearProblem, num_rows: int) -> list[tuple[int, ...]]:
    """Blocks of rows, outputs and inputs, warps and stages; one row is tried with and without tensor cores."""
    if not problem.is_plain:
        return _shapes_of_packed(problem, packing_of(problem.weight_format, problem.in_features), num_rows)
    if num_rows > 32:
        return [shape for shape in _MORE_ROWS if shape[0] <= power_of_two(num_rows)]
    height = 16 if num_rows <= 16 else 32
    one = [(1, n, k, warps, 1) for n, k, warps in _ONE_ROW] if num_rows == 1 else []
    halves = [(16, 64, 128, 4, 6), (16, 64, 256, 4, 4)] if height == 32 else []
    return [(height, *shape) for shape in _FEW_ROWS] + one + halves


def _shapes_of_packed(problem: LinearProblem, packing: Packing, num_rows: int) -> list[tuple[int, ...]]:
    if num_rows == 1:
        shapes = _ONE_ROW_OF_WORDS if packing.is_planar else _ONE_ROW_OF_BYTES
        return [(1, n, k, warps, stages) for n, k, warps in shapes for stages in (1, 3, 4, 5)]
    if num_rows > 32:
        found = [shape for shape in _MORE_ROWS_OF_CODES if shape[0] <= power_of_two(num_rows)]
    else:
        found = [(16 if num_rows <= 16 else 32, *shape) for shape in _FEW_ROWS_OF_CODES]
    return [shape for shape in found if shape[2] == block_of_inputs(packing, shape[2])]


def _splits(problem: LinearProblem, row_blocks: int, block_n: int, block_k: int) -> list[tuple[int, int]]:
    """Splits of the inputs, each with the steps to ask for ahead."""
    blocks, steps = row_blocks * -(-problem.out_features // block_n), -(-problem.in_features // block_k)
    tile_bytes = format_bytes(problem.weight_format, block_n, block_k) * (2 if problem.gated else 1)
    ahead = max(1, _AHEAD_BYTES // tile_bytes)
    enough = [
        split
        for split in (1, 2, 3, 4, 6, 8, 12)
        if blocks * split >= _FEWEST and steps >= split and (split == 1 or blocks * split <= _MOST)
    ]
    return [(split, min(ahead, -(-steps // split))) for split in enough[:2]]


class LinearSubject(Subject):
    """Copies of one problem's weights on the GPU, enough that none finds itself in the cache; seeded."""

    def __init__(self, problem: LinearProblem) -> None:
        self._problem = problem
        self._generator = torch.Generator("cuda").manual_seed(0)
        copies = max(2, num_copies(format_bytes(problem.weight_format, problem.weight_rows, problem.in_features)))
        self._weights = [self._random_weights() for _ in range(copies)]
        self._norm = self._random(problem.in_features) + 1 if is_normed(problem) else None

    def candidates(self, num_rows: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"linear": [asdict(config) for config in candidates(self._problem, num_rows)]}

    def calls(self, part: str, config: Mapping[str, Any], num_rows: int) -> Sequence[Callable[[], Any]]:
        tile = SkinnyConfig(**config)
        residual = self._random(num_rows, self._problem.out_features) if self._norm is None else None
        return self._bound(lambda weights: SkinnyLinear(self._problem, weights, tile, num_rows), num_rows, residual)

    def rival(self, part: str, num_rows: int) -> Sequence[Callable[[], Any]]:
        # Where a linear does not add the residual, the norm that follows does, at nearly no cost.
        composed = COMPOSED_BACKEND if self._problem.is_plain else PACKED_COMPOSED_BACKEND
        return self._bound(lambda weights: composed.bind(self._problem, weights), num_rows, None)

    def join(self, best: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return best["linear"]

    def _bound(
        self, bind: Callable[[Any], Callable[..., Any]], num_rows: int, residual: torch.Tensor | None
    ) -> Sequence[Callable[[], Any]]:
        inputs = (self._random(num_rows, self._problem.in_features), self._norm, 1e-6, 0.0, residual)
        return [partial(bind(weights), *inputs) for weights in self._weights]

    def _random_weights(self) -> Mapping[str, Any]:
        problem = self._problem
        weight = self._random(problem.weight_rows, problem.in_features) * 0.02
        if problem.is_plain:
            return {"weight": weight, "bias": None}
        return pack(problem, {**problem.weight_format.quantize(weight), "bias": None})

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator, device="cuda").to(self._problem.dtype)


def _problems() -> Mapping[str, LinearProblem]:
    """The projections of a layer, and heads."""
    # hidden, outputs of queries, keys and values, inputs of the output projection, intermediate (0: experts)
    models = {
        "Qwen3-0.6B": (1024, 4096, 2048, 3072),
        "Qwen3-8B": (4096, 6144, 4096, 12288),
        "Llama-3-8B": (4096, 6144, 4096, 14336),
        "Qwen3-30B-A3B": (2048, 5120, 4096, 0),
        "gpt-oss-20b": (2880, 5120, 4096, 0),
    }
    heads = {
        f"{model} lm_head": LinearProblem(hidden, 151936, torch.bfloat16, out_dtype=torch.float32)
        for model, hidden in (("Qwen3-0.6B", 1024), ("Qwen3-8B", 4096))
    }
    projections = {
        f"{model} {name}": LinearProblem(k, n, torch.bfloat16, gated=gated)
        for model, (hidden, qkv, heads, intermediate) in models.items()
        for name, k, n, gated in (
            ("qkv_proj", hidden, qkv, False),
            ("o_proj", heads, hidden, False),
            ("gate_up_proj", hidden, intermediate, True),
            ("down_proj", intermediate, hidden, False),
        )
        if k and n
    }
    packed = {
        f"{name} {kind}": replace(problem, weight_format=weight_format, input_format=inputs)
        for kind, (weight_format, inputs) in PACKED.items()
        for name, problem in projections.items()
    }
    return projections | heads | packed


LINEAR_TUNING = Tuning(
    operator="linear", rows=(1, 16, 32, 64, 128), problems=_problems, key=tuning_key, subject=LinearSubject
)
