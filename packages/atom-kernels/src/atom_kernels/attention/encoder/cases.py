"""Random problems and steps of attention in encoders."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from atom_kernels.attention.encoder.problem import EncoderAttentionProblem
from atom_kernels.attention.problem import AttentionPrologue
from atom_kernels.mixers.cache_format import CacheFormat
from atom_kernels.mixers.cases import MixerStep, make_geometry


def make_problem(
    num_heads: int, head_dim: int, dtype: str = "float32", *, window: int | None = None, causal: bool = False
) -> EncoderAttentionProblem:
    """A problem with the usual scale."""
    return EncoderAttentionProblem(num_heads, head_dim, head_dim**-0.5, dtype, CacheFormat(dtype), 16, window, causal)


def make_step(
    problem: EncoderAttentionProblem, lengths: Sequence[int], *, rotary: bool = False, seed: int = 0
) -> MixerStep:
    """A random step over texts of `lengths`; q, k and v are slices of one projection, as layers give them."""
    generator = torch.Generator().manual_seed(seed)
    geometry, _ = make_geometry([(length, length) for length in lengths], problem.block_size)
    shape = (geometry.num_tokens, 3, problem.num_heads, problem.head_dim)
    qkv = torch.randn(shape, generator=generator).to(getattr(torch, problem.dtype))
    prologue = None
    if rotary:
        angles = torch.randn(max(lengths), problem.head_dim // 2, generator=generator) * 3
        positions = torch.cat([torch.arange(length) for length in lengths])
        table = torch.cat((angles.cos(), angles.sin()), dim=1)
        prologue = AttentionPrologue(positions, cos_sin_cache=table, norm_eps=1e-6)
    q, k, v = qkv.unbind(1)
    return MixerStep(inputs=(q, k, v), weights={}, caches=(), geometry=geometry, prologue=prologue)
