"""vLLM's ``[blocks, heads, tokens, keys then values]`` cache as a layout of our kernels."""

from __future__ import annotations

from functools import lru_cache

import torch

from atom_kernels.attention import AttentionProblem
from atom_kernels.mixers import MixerPlan, select_mixer
from atom_kernels.platform import Platform, detect_platform
from atom_kernels.protocols import CacheLayout, CacheTensor

Strides = tuple[int, ...]


def packed_layout(problem: AttentionProblem, strides: Strides | None = None) -> CacheLayout:
    """Keys and values side by side in rows of twice `head_dim`.

    `strides` are those of keys ``[blocks, tokens, heads, head_dim]``; None is head by head without gaps.
    """
    heads, block_size, row = problem.num_kv_heads, problem.block_size, 2 * problem.head_dim
    shape = (block_size, heads, problem.head_dim)
    strides = strides or (heads * block_size * row, row, block_size * row, 1)
    tensors = tuple(CacheTensor(name, shape, problem.kv_cache_dtype, strides) for name in ("key", "value"))
    return CacheLayout("packed_hnd", block_size, tensors)


def plan_over_view(problem: AttentionProblem, strides: Strides | None = None) -> MixerPlan:
    """What reads such a cache here, one for all equal layers; raises UnsupportedMixerError."""
    return _plan(problem, strides, detect_platform())


@lru_cache(maxsize=64)
def _plan(problem: AttentionProblem, strides: Strides | None, platform: Platform) -> MixerPlan:
    return select_mixer(problem, platform, offered=(packed_layout(problem, strides),))


def split_view(kv_cache_BHNC: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values, ``[blocks, tokens, heads, head_dim]`` each, over the bytes of vLLM's tensor."""
    keys_BHND, values_BHND = kv_cache_BHNC.chunk(2, dim=-1)
    return keys_BHND.transpose(1, 2), values_BHND.transpose(1, 2)
