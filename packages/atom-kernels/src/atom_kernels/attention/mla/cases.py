"""Random problems and steps of latent attention."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
from atom_kernels.mixers.cache_format import HEAD_SCALES, NO_SCALES, CacheFormat
from atom_kernels.mixers.cases import MixerStep, make_geometry

_NUM_POSITIONS = 16384


def make_problem(
    num_heads: int, kv_lora_rank: int, nope: int, rope: int, v_head_dim: int, dtype: str = "float32", **overrides: Any
) -> MlaProblem:
    """A problem with the usual scale, a cache of the same dtype and blocks of 16 tokens, unless overridden."""
    cache = CacheFormat(str(overrides.pop("kv_cache_dtype", dtype)), str(overrides.pop("scales", NO_SCALES)))
    values = {"scale": (nope + rope) ** -0.5, "dtype": dtype, "cache": cache, "block_size": 16} | overrides
    return MlaProblem(num_heads, kv_lora_rank, nope, rope, v_head_dim, **values)


def make_step(
    problem: MlaProblem,
    requests: Sequence[tuple[int, int]],
    *,
    scattered: bool = False,
    prologue: bool = True,
    interleaved: bool = True,
    seed: int = 0,
) -> MixerStep:
    """A random step; queries and latents are slices of wider projections, as layers give them.

    Args:
        problem: the layer.
        requests: (queries, tokens in all) of each.
        scattered: blocks in random order rather than one run a request.
        prologue: norm latents and rotate.
        interleaved: the kind of rotation.
        seed: seeds every random number.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, dtype: str = problem.dtype, size: float = 1.0) -> Any:
        return (torch.randn(*shape, generator=generator) * size).to(getattr(torch, dtype))

    geometry, num_blocks = make_geometry(requests, problem.block_size, scattered=scattered, seed=seed)
    q_THD = random(geometry.num_tokens, problem.num_heads, problem.query_dim)
    kv_TL = random(geometry.num_tokens, problem.latent_dim + 5)[:, : problem.latent_dim]
    rank, expanded = problem.kv_lora_rank, problem.qk_nope_head_dim + problem.v_head_dim
    angles = random(_NUM_POSITIONS, problem.qk_rope_head_dim // 2, dtype="float32") * 3
    weights = {"kv_b": random(problem.num_heads * expanded, rank, size=rank**-0.5)}
    if problem.cache.scales == HEAD_SCALES:
        weights["latent_scale"] = random(1, dtype="float32").exp()
    return MixerStep(
        inputs=(q_THD, kv_TL),
        weights=weights,
        caches=tuple(random(num_blocks, *tensor.shape, dtype=tensor.dtype) for tensor in problem.layout.tensors),
        geometry=geometry,
        prologue=MlaPrologue(
            positions=torch.cat([torch.arange(length - queries, length) for queries, length in requests]),
            cos_sin_cache=torch.cat((angles.cos(), angles.sin()), dim=1),
            interleaved=interleaved,
            norm_weight=random(rank),
        )
        if prologue
        else None,
    )
