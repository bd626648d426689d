"""Attention by AITER's `unified_attention`: decodes and prompts in one launch, over NHD blocks of any strides.

Steps of new prompts only need no cache: they go through `flash_attn_varlen_func`.

Shapes: T tokens, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.attention.cache_write import CacheWriter, NewTokens
from atom_kernels.aiter.attention.flash import bind_flash
from atom_kernels.aiter.attention.steps import cut_prologue
from atom_kernels.aiter.library import library
from atom_kernels.aiter.tables import unit_scale
from atom_kernels.mixers.backend import MixerRunner

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches

# AITER's head dims of flash attention are multiples of this.
_FLASH_MULTIPLE = 8


class AiterUnifiedAttention(MixerRunner):
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: AttentionProblem, layout: CacheLayout) -> None:
        self.problem = problem
        self._writer = CacheWriter(problem, layout)
        self._is_float8 = problem.kv_cache_dtype != problem.dtype

    def build_metadata(self, geometry: BatchGeometry) -> BatchGeometry:
        return geometry.dense()

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: BatchGeometry,
        *,
        weights: torch.Tensor | None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        (q_THD, k_TKD, v_TKD), sinks = inputs, weights
        # Rows of no request are zeros, also those that only the device knows of.
        out_THD = torch.zeros(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        if metadata.num_tokens:
            rows = slice(0, metadata.num_tokens)
            tokens = NewTokens(q_THD[rows], k_TKD[rows], v_TKD[rows], metadata.slot_mapping)
            tokens = self._writer.write(tokens, caches, prologue and cut_prologue(prologue, metadata.num_tokens))
            if metadata.prompts_are_new and not metadata.num_decodes and self._takes_new_prompts:
                self._attend_new(tokens, out_THD[rows], metadata, sinks)
            else:
                self._attend(tokens.q, caches, out_THD[rows], metadata, sinks)
        return out_THD

    def _attend(
        self,
        q_THD: torch.Tensor,
        caches: Caches,
        out_THD: torch.Tensor,
        metadata: BatchGeometry,
        sinks: torch.Tensor | None,
    ) -> None:
        scale = unit_scale(q_THD.device) if self._is_float8 else None
        self._unified(
            q_THD, *caches, out_THD, metadata.query_start_loc, metadata.max_query_len, metadata.seq_lens,
            metadata.max_seq_len, metadata.block_table, scale, scale, sinks,
        )  # fmt: skip

    @cached_property
    def _unified(self) -> Any:
        problem = self.problem
        window = problem.sliding_window
        return library().bind(
            "unified_attention",
            "q", "k", "v", "out", "cu_seqlens_q", "max_seqlen_q", "seqused_k", "max_seqlen_k", "block_table",
            "k_descale", "v_descale", "sinks",
            softmax_scale=problem.scale,
            causal=True,
            # AITER adds one to the first, and takes zero for no window.
            window_size=(-1, -1) if window is None else (window - 1, 0),
            softcap=problem.soft_cap or 0.0,
            q_descale=None,
        )  # fmt: skip

    # --- new prompts --------------------------------------------------------------------------------------------------

    @cached_property
    def _takes_new_prompts(self) -> bool:
        """Where attention sees what was given, not what a cache of another dtype made of it."""
        problem = self.problem
        sinks = ("sink_ptr",) if problem.has_sinks else ()
        fits = not self._is_float8 and problem.head_dim % _FLASH_MULTIPLE == 0
        return fits and library().has("flash_attn_varlen_func", *sinks)

    def _attend_new(
        self, tokens: NewTokens, out_THD: torch.Tensor, metadata: BatchGeometry, sinks: torch.Tensor | None
    ) -> None:
        starts, length = metadata.query_start_loc, metadata.max_query_len
        given = (tokens.q, tokens.k, tokens.v, starts, starts, length, length, out_THD)
        self._flash(*given, *([sinks.float()] if sinks is not None else []))

    @cached_property
    def _flash(self) -> Any:
        problem = self.problem
        window = problem.sliding_window
        return bind_flash(
            problem.scale,
            has_sinks=problem.has_sinks,
            logits_soft_cap=problem.soft_cap or 0.0,
            window_size=(-1, -1) if window is None else (window - 1, 0),
        )
