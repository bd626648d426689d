"""Random problems and steps of attention over pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
from atom_kernels.mixers.cache_format import HEAD_SCALES, NO_SCALES, CacheFormat
from atom_kernels.mixers.cases import MixerStep, make_geometry

_MIN_POSITIONS = 1024
# Tokens that a prompt has at least, where some of it are pictures.
_AROUND_PICTURES = 6


def make_problem(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: str = "float32", **overrides: object
) -> AttentionProblem:
    """A problem with the usual scale, a cache of the same dtype and blocks of 16 tokens, unless overridden."""
    cache = CacheFormat(str(overrides.pop("kv_cache_dtype", dtype)), str(overrides.pop("scales", NO_SCALES)))
    values = {"scale": head_dim**-0.5, "dtype": dtype, "cache": cache, "block_size": 16} | overrides
    return AttentionProblem(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim, **values)  # type: ignore[arg-type]


def make_step(
    problem: AttentionProblem,
    requests: Sequence[tuple[int, int]],
    *,
    scattered: bool = False,
    rotary_dim: int | None = None,
    interleaved: bool = False,
    norms: bool = False,
    seed: int = 0,
) -> MixerStep:
    """A random step; q, k and v are slices of one projection, as layers give them.

    Args:
        problem: the layer.
        requests: (queries, tokens in all) of each.
        scattered: blocks in random order rather than one run a request.
        rotary_dim: None for no rotation.
        interleaved: the kind of rotation.
        norms: head norms on queries and keys.
        seed: seeds every random number.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, dtype: str = problem.dtype) -> Any:
        return torch.randn(*shape, generator=generator).to(getattr(torch, dtype))

    geometry, num_blocks = make_geometry(requests, problem.block_size, scattered=scattered, seed=seed)
    heads = (problem.num_heads, problem.num_kv_heads, problem.num_kv_heads)
    qkv = random(geometry.num_tokens, sum(heads) * problem.head_dim)
    parts = qkv.split([count * problem.head_dim for count in heads], dim=1)
    q, k, v = (part.unflatten(1, (count, problem.head_dim)) for part, count in zip(parts, heads, strict=True))
    if problem.sees_ahead:
        geometry = replace(geometry, sees_until=_pictures(requests))
    prologue = None
    if rotary_dim is not None or norms:
        num_positions = max(_MIN_POSITIONS, geometry.max_seq_len)
        angles = None if rotary_dim is None else random(num_positions, rotary_dim // 2, dtype="float32") * 3
        prologue = AttentionPrologue(
            positions=torch.cat([torch.arange(length - queries, length) for queries, length in requests]),
            cos_sin_cache=None if angles is None else torch.cat((angles.cos(), angles.sin()), dim=1),
            interleaved=interleaved,
            q_norm_weight=random(problem.head_dim) if norms else None,
            k_norm_weight=random(problem.head_dim) if norms else None,
            norm_eps=1e-6,
        )
    weights = {"sinks": random(problem.num_heads)} if problem.has_sinks else {}
    if problem.cache.scales == HEAD_SCALES:
        weights |= {name: random(problem.num_kv_heads, dtype="float32").exp() for name in ("key_scale", "value_scale")}
    return MixerStep(
        inputs=(q, k, v),
        caches=tuple(random(num_blocks, *tensor.shape, dtype=tensor.dtype) for tensor in problem.layout.tensors),
        geometry=geometry,
        prologue=prologue,
        weights=weights,
    )


def _pictures(requests: Sequence[tuple[int, int]]) -> torch.Tensor:
    """The last position that each token sees: of longer prompts all but the first and last tokens are two pictures."""
    sees_until: list[int] = []
    for queries, length in requests:
        own = torch.full((queries,), -1, dtype=torch.int32)
        if queries > _AROUND_PICTURES:
            first, middle, end = length - queries, queries // 3, queries - 2
            own[1:middle], own[middle:end] = first + middle - 1, first + end - 1
        sees_until += own.tolist()
    return torch.tensor(sees_until, dtype=torch.int32)
