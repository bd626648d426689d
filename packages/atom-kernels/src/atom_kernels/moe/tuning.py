"""Tuning of the experts: candidates for both products, by how many pairs an expert has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from atom_kernels.activation.names import Activation
from atom_kernels.formats import Float8, Mxfp4
from atom_kernels.moe.contract import ExpertsProblem
from atom_kernels.moe.triton.configs import ExpertsConfig, TileConfig, may_round, tuning_key
from atom_kernels.moe.triton.experts_backend import TritonExperts
from atom_kernels.operator import WeightSpec
from atom_kernels.select import select
from atom_kernels.tuned.sizes import sizes
from atom_kernels.tuned.tuner import Subject, Tuning

# block_n, block_k, num_warps, num_stages
_FEW = ((32, 128, 4, 5), (32, 256, 4, 4), (64, 128, 4, 4), (64, 256, 4, 3), (128, 128, 4, 3), (128, 128, 8, 3))
_FEW_SWAPPED = ((64, 128, 4, 4), (64, 256, 4, 3), (128, 64, 4, 4), (128, 64, 8, 5), (128, 128, 4, 3))
# block_m, block_n, block_k, num_warps, num_stages
_MANY = sizes(
    "64x128x64x4x4 64x128x128x8x3 64x256x64x8x3 128x64x64x4x4 128x128x64x4x3 128x128x64x8x3 128x128x64x8x4 "
    "128x256x64x8x3"
)
# Packed weights, outputs on the long side: block_n, num_warps, num_stages by the number of pairs.
_FEW_PACKED = ((64, 4, 3), (64, 4, 4), (64, 4, 6), (128, 4, 3), (128, 4, 5), (128, 8, 4))
_MANY_PACKED = ((128, 4, 3), (128, 8, 3), (256, 8, 3))
# Inputs of a step: a tile of words.
_PACKED_K = 128
# A scale of weights, as an e8m0.
_SMALL_EXPONENT = 120
# Sets of rows that calls use in turn, so that they reach other experts.
_ROTATIONS = 4


def candidates(problem: ExpertsProblem, num_tokens: int) -> list[TileConfig]:
    """About as many as can be compiled and timed in a minute."""
    pairs_of_expert = num_tokens * problem.top_k / problem.num_routed
    if not problem.is_plain:
        return _packed_candidates(problem, pairs_of_expert)
    if pairs_of_expert > 40:
        shapes = [shape for shape in _MANY if shape[0] <= 64 or pairs_of_expert > 64]
        return [
            TileConfig(m, n, k, group, False, warps, stages) for m, n, k, warps, stages in shapes for group in (1, 8)
        ]
    heights = [16] if pairs_of_expert <= 3 else [16, 32] if pairs_of_expert <= 12 else [32, 64]
    return [
        TileConfig(height, n, k, 1, swap, warps, stages)
        for height in heights
        for swap, shapes in ((False, _FEW), (True, _FEW_SWAPPED))
        for n, k, warps, stages in shapes
    ]


def _packed_candidates(problem: ExpertsProblem, pairs_of_expert: float) -> list[TileConfig]:
    """Blocks about as high as an expert has pairs."""
    if pairs_of_expert > 24:
        heights = [64] if pairs_of_expert <= 64 else [64, 128, 256]
        shapes, rounding = _MANY_PACKED, (False, True) if may_round(problem) else (False,)
    else:
        heights = [16] if pairs_of_expert <= 6 else [16, 32]
        shapes, rounding = _FEW_PACKED, (False,)
    return [
        TileConfig(height, n, _PACKED_K, 1, True, warps, stages, rounds)
        for height in heights
        for n, warps, stages in shapes
        for rounds in rounding
    ]


class ExpertsSubject(Subject):
    """Weights and rows of one problem on the GPU, seeded."""

    def __init__(self, problem: ExpertsProblem) -> None:
        from atom_kernels.moe.ops import MOE_EXPERTS

        self._problem = problem
        self._generator = torch.Generator("cuda").manual_seed(0)
        weights = {name: self._weight(name, spec) for name, spec in MOE_EXPERTS.weights(problem).items()}
        layout = select(MOE_EXPERTS, problem, only_backend="triton").rows[0].layout
        self._weights = layout.pack(problem, weights)
        self._inputs_of: tuple[str, int] | None = None
        self._inputs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def candidates(self, num_rows: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        configs = [asdict(config) for config in candidates(self._problem, num_rows)]
        return {"gate_up": configs, "down": configs}

    def calls(self, part: str, config: Mapping[str, Any], num_rows: int) -> Sequence[Callable[[], Any]]:
        tile = TileConfig(**config)
        kernel = TritonExperts(self._problem, self._weights, lambda _: ExpertsConfig(tile, tile))
        if self._inputs_of != (part, num_rows):
            self._inputs_of, self._inputs = (part, num_rows), [self._make(part, num_rows) for _ in range(_ROTATIONS)]
        return [kernel.product_call(part, x, ids, tile) for x, ids in self._inputs]

    def _make(self, part: str, num_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of a part's input and the experts that they go to, evenly."""
        problem = self._problem
        scores = torch.rand(num_rows, problem.num_routed, generator=self._generator, device="cuda")
        ids = scores.topk(problem.top_k).indices.clamp(max=problem.num_experts).to(torch.int32)
        if part == "gate_up":
            return self._random(num_rows, problem.hidden_size), ids
        return self._random(num_rows * problem.top_k, problem.intermediate_size), ids

    def _weight(self, name: str, spec: WeightSpec) -> torch.Tensor | None:
        """Small numbers, any codes, and scales of one number each."""
        if spec.optional:
            return None
        if "_scale" in name or "_minimum" in name:
            small = _SMALL_EXPONENT if spec.dtype is torch.uint8 else 2.0 ** (_SMALL_EXPONENT - 127)
            return torch.full(spec.shape, small, dtype=spec.dtype, device="cuda")
        if spec.dtype.itemsize == 1 and not spec.dtype.is_floating_point:
            return torch.randint(0, 128, spec.shape, generator=self._generator, dtype=spec.dtype, device="cuda")
        return (self._random(*spec.shape) * 0.02).to(spec.dtype)

    def _random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self._generator, device="cuda").to(self._problem.dtype)


def _problems() -> Mapping[str, ExpertsProblem]:
    bf16, blocks = torch.bfloat16, Float8(128, 128)
    return {
        "Qwen3-30B-A3B": ExpertsProblem(128, 8, 2048, 768, bf16),
        "Qwen3-30B-A3B fp8": ExpertsProblem(
            *(128, 8, 2048, 768, bf16), gate_up_format=blocks, down_format=blocks, input_format=Float8(1, 128)
        ),
        "gpt-oss-20b": ExpertsProblem(32, 4, 2880, 2880, bf16, activation=Activation.SWIGLU_OAI, bias=True),
        **{
            f"{name} mxfp4": ExpertsProblem(
                *(count, 4, 2880, 2880, bf16, Activation.SWIGLU_OAI, True), gate_up_format=Mxfp4(), down_format=Mxfp4()
            )
            for name, count in (("gpt-oss-20b", 32), ("gpt-oss-120b", 128))
        },
        "DeepSeek-V2-Lite": ExpertsProblem(64, 6, 2048, 1408, bf16),
        "Mixtral-8x7B": ExpertsProblem(8, 2, 4096, 14336, bf16),
    }


MOE_EXPERTS_TUNING = Tuning(
    operator="moe_experts", rows=(1, 8, 32, 128, 512, 2048), problems=_problems, key=tuning_key, subject=ExpertsSubject
)
