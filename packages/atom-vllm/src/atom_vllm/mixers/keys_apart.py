"""vLLM's cache with all keys of a layer before its values, for AITER's kernel that norms, rotates and writes at once.

Its tensor ``[blocks, 2, tokens, heads * head_dim]`` lies as ``[2, blocks, ...]``: two caches without holes.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from typing import Any

import torch

from atom_kernels.aiter.attention.layouts import shuffled_layout, why_not_shuffled
from atom_kernels.attention import AttentionProblem
from atom_kernels.mixers import MixerPlan, select_mixer
from atom_kernels.platform import Platform, detect_platform
from atom_kernels.protocols import CacheLayout, Caches
from atom_kernels.settings import fuse_norm_rope_cache
from atom_vllm.compat import layouts_with_keys_apart


def keys_are_apart() -> bool:
    """Whether we ask vLLM for such a cache: the kernel is asked for and is there, and vLLM has such a layout."""
    aiter = detect_platform().aiter
    has_kernel = aiter is not None and aiter.has("fused_qk_norm_rope_cache_quant_shuffle")
    return has_kernel and fuse_norm_rope_cache() and layouts_with_keys_apart() is not None


def spec_with_keys_apart(spec: Any) -> Any:
    """vLLM's spec of a layer's cache, with keys and values in the place of heads; as many bytes as before."""
    row_bytes = spec.num_kv_heads * spec.head_size * spec.dtype.itemsize
    return dataclasses.replace(spec, num_head_slots=2, state_content_bytes=row_bytes)


def plan_with_keys_apart(problem: AttentionProblem) -> MixerPlan:
    """What reads such a cache here, one for all equal layers; raises UnsupportedMixerError."""
    return _plan(problem, detect_platform())


def split_apart(kv_cache_B2NC: torch.Tensor, layout: CacheLayout) -> Caches:
    """Keys and values over the bytes of vLLM's tensor, as `layout` has them in a block."""
    halves = zip(kv_cache_B2NC.unbind(1), layout.tensors, strict=True)
    return tuple(half.view(-1, *tensor.shape) for half, tensor in halves)


@lru_cache(maxsize=64)
def _plan(problem: AttentionProblem, platform: Platform) -> MixerPlan:
    shuffled = () if why_not_shuffled(problem) else (shuffled_layout(problem),)
    return select_mixer(problem, platform, offered=(*shuffled, problem.layout))
