"""Tuning of linears of few rows with their neighbors: candidates by shape and number of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from atom_kernels.graph_timing import num_copies
from atom_kernels.linear.contract import FusedLinearProblem
from atom_kernels.linear.skinny_configs import MAX_ROWS, SkinnyConfig, tuning_key
from atom_kernels.linear.triton_backend import SkinnyLinear

# block_n, block_k, num_warps
_ONE_ROW = (
    *((1, 1024, 2), (2, 1024, 2), (2, 2048, 4), (4, 512, 2), (4, 1024, 4), (4, 2048, 8)),
    *((8, 512, 2), (8, 512, 4), (8, 1024, 4), (16, 256, 4), (16, 512, 4), (16, 512, 8)),
)
# block_n, block_k, num_warps, num_stages
_FEW_ROWS = (
    *((16, 256, 4, 4), (32, 128, 4, 6), (32, 256, 4, 3), (64, 64, 4, 6), (64, 128, 4, 3), (64, 128, 4, 5)),
    *((64, 128, 8, 3), (64, 256, 4, 3), (128, 64, 4, 5), (128, 128, 8, 3)),
)
# Of a program's weights, asked for ahead: what all programs ask for together must stay in the L2 cache.
_AHEAD_BYTES = 32768
# Programs below which a large GPU is not full, and above which splitting more cannot help.
_FEWEST, _MOST = 120, 1300


def candidates(problem: FusedLinearProblem, num_rows: int) -> list[SkinnyConfig]:
    """For each block the first splits that fill the GPU; one row is tried with and without tensor cores."""
    height = 16 if num_rows <= 16 else MAX_ROWS
    shapes = [(height, *shape) for shape in _FEW_ROWS]
    if num_rows == 1:
        shapes += [(1, n, k, warps, 1) for n, k, warps in _ONE_ROW]
    found = []
    for block_m, block_n, block_k, num_warps, num_stages in shapes:
        blocks, steps = -(-problem.out_features // block_n), -(-problem.in_features // block_k)
        splits = [
            split
            for split in (1, 2, 3, 4, 6, 8, 12)
            if blocks * split >= _FEWEST and steps >= split and (split == 1 or blocks * split <= _MOST)
        ]
        tile_bytes = block_n * block_k * problem.dtype.itemsize * (2 if problem.gated else 1)
        ahead = max(1, _AHEAD_BYTES // tile_bytes)
        found += [
            SkinnyConfig(block_m, block_n, block_k, split, num_warps, num_stages, min(ahead, -(-steps // split)))
            for split in splits[:2]
        ]
    return found


class LinearSubject:
    """Weights of one problem on the GPU, as many as keep each other out of the cache, seeded."""

    def __init__(self, problem: FusedLinearProblem) -> None:
        self._problem = problem
        generator = torch.Generator("cuda").manual_seed(0)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, generator=generator, device="cuda").to(problem.dtype)

        copies = max(2, num_copies(problem.weight_rows * problem.in_features * problem.dtype.itemsize))
        self._weights = [random(problem.weight_rows, problem.in_features) * 0.02 for _ in range(copies)]
        self._x, self._norm = random(MAX_ROWS, problem.in_features), random(problem.in_features) + 1
        self._residual = random(MAX_ROWS, problem.out_features)

    def candidates(self, num_rows: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"linear": [asdict(config) for config in candidates(self._problem, num_rows)]}

    def calls(self, part: str, config: Mapping[str, Any], num_rows: int) -> Sequence[Callable[[], Any]]:
        inputs = (self._x[:num_rows], self._norm, 1e-6, 0.0, self._residual[:num_rows])
        tile = SkinnyConfig(**config)
        return [
            partial(SkinnyLinear(self._problem, {"weight": weight, "bias": None}, tile), *inputs)
            for weight in self._weights
        ]

    def join(self, best: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return best["linear"]


class LinearTuning:
    """`Tuning` of the operator ``fused_linear``."""

    operator = "fused_linear"
    rows = (1, 16, MAX_ROWS)

    def problems(self) -> Mapping[str, FusedLinearProblem]:
        """The projections of a layer, and heads."""
        # hidden, outputs of queries, keys and values, inputs of the output projection, intermediate
        models = {
            "Qwen3-0.6B": (1024, 4096, 2048, 3072),
            "Qwen3-8B": (4096, 6144, 4096, 12288),
            "Llama-3-8B": (4096, 6144, 4096, 14336),
        }
        heads = {
            f"{model} lm_head": FusedLinearProblem(hidden, 151936, torch.bfloat16, out_dtype=torch.float32)
            for model, hidden in (("Qwen3-0.6B", 1024), ("Qwen3-8B", 4096))
        }
        projections = {
            f"{model} {name}": FusedLinearProblem(k, n, torch.bfloat16, gated=gated)
            for model, (hidden, qkv, heads, intermediate) in models.items()
            for name, k, n, gated in (
                ("qkv_proj", hidden, qkv, False),
                ("o_proj", heads, hidden, False),
                ("gate_up_proj", hidden, intermediate, True),
                ("down_proj", intermediate, hidden, False),
            )
        }
        return projections | heads

    def key(self, problem: FusedLinearProblem) -> str:
        return tuning_key(problem)

    def subject(self, problem: FusedLinearProblem) -> LinearSubject:
        return LinearSubject(problem)


FUSED_LINEAR_TUNING = LinearTuning()
