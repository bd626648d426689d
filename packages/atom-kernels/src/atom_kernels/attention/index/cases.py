"""Random problems and steps of a lightning index.

All numbers are small multiples of powers of two, and angles are quarter turns: scores are exact in any order of sums,
and many of them are equal, so that backends must agree on every position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from atom_kernels.attention.index.problem import IndexProblem, IndexPrologue
from atom_kernels.mixers.cases import MixerStep, make_geometry

_NUM_POSITIONS = 16384


def make_problem(
    num_heads: int, head_dim: int, rotary_dim: int, top_k: int, dtype: str = "float32", **overrides: Any
) -> IndexProblem:
    """A problem with a scale that is a power of two and blocks of 16 tokens, unless overridden."""
    values = {"scale": 0.125, "dtype": dtype, "block_size": 16} | overrides
    sizes = {"num_heads": num_heads, "head_dim": head_dim, "rotary_dim": rotary_dim, "top_k": top_k}
    return IndexProblem(**sizes, **values)


def make_step(
    problem: IndexProblem,
    requests: Sequence[tuple[int, int]],
    *,
    scattered: bool = False,
    prologue: bool = True,
    interleaved: bool = False,
    seed: int = 0,
) -> MixerStep:
    """A random step; keys and heads' weights are slices of a wider projection, as layers give them.

    Args:
        problem: the index.
        requests: (queries, tokens in all) of each.
        scattered: blocks in random order rather than one run a request.
        prologue: rotate.
        interleaved: the kind of rotation.
        seed: seeds every random number.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, largest: int, dtype: str = problem.dtype) -> torch.Tensor:
        return torch.randint(-largest, largest + 1, shape, generator=generator).to(getattr(torch, dtype))

    geometry, num_blocks = make_geometry(requests, problem.block_size, scattered=scattered, seed=seed)
    num_tokens = geometry.num_tokens
    q_THD = random(num_tokens, problem.num_heads, problem.head_dim, largest=1)
    projected = random(num_tokens, problem.head_dim + problem.num_heads + 3, largest=2)
    k_TD, head_weights_TH, _ = projected.split([problem.head_dim, problem.num_heads, 3], dim=1)
    turns = torch.randint(4, (_NUM_POSITIONS, problem.rotary_dim // 2), generator=generator)
    cos, sin = torch.tensor([1.0, 0.0, -1.0, 0.0])[turns], torch.tensor([0.0, 1.0, 0.0, -1.0])[turns]
    return MixerStep(
        inputs=(q_THD, k_TD, head_weights_TH / 4),
        weights={},
        caches=tuple(random(num_blocks, *tensor.shape, largest=2) for tensor in problem.layout.tensors),
        geometry=geometry,
        prologue=IndexPrologue(
            positions=torch.cat([torch.arange(length - queries, length) for queries, length in requests]),
            cos_sin_cache=torch.cat((cos, sin), dim=1),
            interleaved=interleaved,
        )
        if prologue
        else None,
    )
