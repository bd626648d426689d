"""Attention by Triton: one launch writes the cache, then decodes and chunks of prompts take a launch each.

Shapes: T tokens, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.hopper.configs import hopper_config
from atom_kernels.attention.triton.configs import decode_config, prefill_config, reads_words
from atom_kernels.attention.weights import NO_WEIGHTS, AttentionWeights
from atom_kernels.mixers.backend import MixerBackend, MixerRunner, reads_any_strides
from atom_kernels.mixers.cache_format import ALL_SCALES
from atom_kernels.platform import AITER_ARCHES
from atom_kernels.powers_of_two import power_of_two
from atom_kernels.triton.launch import launch

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.attention.triton.launch import Scales, TritonMetadata
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches

_DTYPES = ("float32", "bfloat16", "float16")
_MAX_HEAD_DIM = 256
# A program of the prologue is one warp with so many numbers: a processor then has most of its reads under way.
_PROLOGUE_TILE = 512


def supports(problem: AttentionProblem, platform: Platform) -> str | None:
    reason = why_not_dtypes(problem.dtype, problem.kv_cache_dtype, platform)
    if reason is None and problem.head_dim > _MAX_HEAD_DIM:
        reason = f"written for head_dim up to {_MAX_HEAD_DIM}, not {problem.head_dim}"
    return reason


def why_not_dtypes(dtype: str, kv_cache_dtype: str, platform: Platform) -> str | None:
    """Why the kernels cannot compute in `dtype` over a cache of `kv_cache_dtype`, None if they can."""
    if dtype not in _DTYPES:
        return f"computes in {', '.join(_DTYPES)}, not in {dtype}"
    if kv_cache_dtype == dtype:
        return None
    if kv_cache_dtype != platform.float8:
        return f"reads a cache of {dtype} or {platform.float8}, not of {kv_cache_dtype}"
    if not _has_float8(platform):
        needed = f"an NVIDIA GPU of sm_89 or later, or {' or '.join(AITER_ARCHES)}"
        return f"{kv_cache_dtype} needs {needed}, this is {platform.arch}"
    return None


def _has_float8(platform: Platform) -> bool:
    if platform.vendor == "nvidia":
        return int(platform.arch.removeprefix("sm_")) >= 89
    return platform.vendor == "cpu" or platform.arch in AITER_ARCHES


def largest_number(problem: AttentionProblem | MlaProblem) -> float:
    """The largest number of a cache in float8, 0 for one that is wide enough for all."""
    is_float8 = problem.cache.is_float8
    return torch.finfo(getattr(torch, problem.kv_cache_dtype)).max if is_float8 else 0.0


class TritonAttention(MixerRunner):
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: AttentionProblem, layout: CacheLayout) -> None:
        # Triton is imported where a plan uses it, and only there.
        from atom_kernels.attention.triton.launch import PagedKernels, scale_strides
        from atom_kernels.attention.triton.prologue import prologue_kernel
        from atom_kernels.triton.support import dependent_launch

        self.problem = problem
        self.layout = layout
        self._dtype = getattr(torch, problem.dtype)
        self._prologue_kernel, self._dependent_launch = prologue_kernel, dependent_launch
        self._scale_strides = scale_strides
        self.kernels = PagedKernels(
            num_heads=problem.num_heads,
            group=problem.group_size,
            head_dim=problem.head_dim,
            block_size=layout.block_size,
            scale=problem.scale,
            dtype=self._dtype,
            decode=decode_config(problem),
            prefill=prefill_config(problem),
            window=problem.sliding_window or 0,
            soft_cap=problem.soft_cap,
            batch_invariant=problem.batch_invariant,
            in_words=reads_words(problem),
            hopper=hopper_config(problem),
        )

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> AttentionWeights:
        return AttentionWeights.of(weights)

    def build_metadata(self, geometry: BatchGeometry) -> TritonMetadata:
        return self.kernels.build_metadata(geometry)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: TritonMetadata,
        *,
        weights: AttentionWeights | None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        (q_THD, k_TKD, v_TKD), weights = inputs, weights or NO_WEIGHTS
        if q_THD.dtype is not self._dtype:
            raise TypeError(f"attention was planned for {self._dtype}, got {q_THD.dtype}")
        rows = (self.problem.head_dim, 1)
        q_THD, k_TKD, v_TKD = (x if x.stride()[1:] == rows else x.contiguous() for x in (q_THD, k_TKD, v_TKD))
        out_THD = q_THD.new_empty(q_THD.shape)
        if q_THD.shape[0] > metadata.step.num_tokens:
            out_THD[metadata.step.num_tokens :].zero_()
        if metadata.step.num_tokens:
            k_cache, v_cache, *token_scales = caches
            scales: Scales | None = weights.head_scales
            if token_scales:
                scales = token_scales[0], token_scales[1]
            q_THD = self._write_cache((q_THD, k_TKD, v_TKD), (k_cache, v_cache), scales, metadata, prologue=prologue)
            self.kernels.attend(q_THD, k_cache, v_cache, out_THD, metadata, weights.sinks, scales)
        return out_THD

    def _write_cache(
        self,
        inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        caches: tuple[torch.Tensor, torch.Tensor],
        scales: Scales | None,
        metadata: TritonMetadata,
        *,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        """Keys and values to their slots; the queries that attention uses."""
        problem, (q_THD, k_TKD, v_TKD) = self.problem, inputs
        strides = self._scale_strides(scales, caches[0])
        positions = cos_sin = q_norm = k_norm = None
        if prologue is not None:
            positions, cos_sin = prologue.positions, prologue.cos_sin_cache
            q_norm, k_norm = prologue.q_norm_weight, prologue.k_norm_weight
        write_q = cos_sin is not None or q_norm is not None
        q_out = torch.empty(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device) if write_q else q_THD
        block_d = max(16, power_of_two(problem.head_dim))
        block_h = min(power_of_two(max(problem.num_heads, problem.num_kv_heads)), max(1, _PROLOGUE_TILE // block_d))
        parts = -(-problem.num_kv_heads // block_h) + (-(-problem.num_heads // block_h) if write_q else 0)
        launch(
            self._prologue_kernel, (metadata.step.num_tokens, parts),
            q_THD, k_TKD, v_TKD, q_out, *caches, *(scales or (None, None)), metadata.step.slot_mapping,
            positions, cos_sin, q_norm, k_norm,
            1e-6 if prologue is None else prologue.norm_eps,
            q_THD.stride(0), k_TKD.stride(0), v_TKD.stride(0), *caches[0].stride()[:3],
            strides.block, strides.token, strides.head,
            NUM_HEADS=problem.num_heads,
            NUM_KV_HEADS=problem.num_kv_heads,
            HEAD_DIM=problem.head_dim,
            ROTARY_DIM=0 if cos_sin is None else cos_sin.shape[1],
            BLOCK_SIZE=self.layout.block_size,
            INTERLEAVED=prologue is not None and prologue.interleaved,
            WRITE_Q=write_q,
            SCALES=strides.scales,
            LARGEST=largest_number(problem),
            BLOCK_H=block_h,
            BLOCK_D=block_d,
            num_warps=1,
            **self._dependent_launch(),
        )  # fmt: skip
        return q_out


def _passed_over(problem: AttentionProblem, platform: Platform, layout: CacheLayout) -> tuple[tuple[str, str], ...]:
    """Prompts have a kernel of their own on Hopper."""
    if platform.arch != "sm_90" or not problem.cache.is_float8:
        return ()
    return (
        (
            "triton, prompts on Hopper",
            f"multiplies pages as they are copied, and {problem.cache.name} is decoded first",
        ),
    )


BACKEND = MixerBackend(
    name="triton",
    supports=supports,
    create=TritonAttention,
    why_not_strided=reads_any_strides,
    passed_over=_passed_over,
    cache_scales=ALL_SCALES,
)
