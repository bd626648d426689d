"""Attention over shuffled blocks: decodes by AITER's assembly, `pa_fwd_asm`, chunks of prompts by `prompts`.

Float8 is cached with a scale for each token and head, which these kernels of the assembly want.

Shapes: T tokens, R requests, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.attention.cache_write import CacheWriter, NewTokens
from atom_kernels.aiter.attention.flash import bind_flash
from atom_kernels.aiter.attention.limits import takes_queries
from atom_kernels.aiter.attention.prompts import GatheredPrompts, PagedPrompts
from atom_kernels.aiter.attention.steps import SplitStep, cut_prologue, split_step
from atom_kernels.aiter.library import library
from atom_kernels.mixers.backend import MixerRunner

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches


class AiterShuffledAttention(MixerRunner):
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: AttentionProblem, layout: CacheLayout) -> None:
        self.problem, self.layout = problem, layout
        self._writer = CacheWriter(problem, layout)
        has_scales = layout.name == "shuffled_scaled"
        self.captures_prompts = not has_scales
        self._prompts = GatheredPrompts(problem) if has_scales else PagedPrompts(problem)

    def build_metadata(self, geometry: BatchGeometry) -> SplitStep:
        return split_step(geometry, takes_queries(self.problem, geometry.max_decode_len), self._prompts.list)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: SplitStep,
        *,
        weights: torch.Tensor | None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        q_THD, k_TKD, v_TKD = inputs
        # Rows of no request are zeros, also those that only the device knows of.
        out_THD = torch.zeros(q_THD.shape, dtype=q_THD.dtype, device=q_THD.device)
        num_tokens = metadata.step.num_tokens
        if num_tokens:
            rows = slice(0, num_tokens)
            tokens = NewTokens(q_THD[rows], k_TKD[rows], v_TKD[rows], metadata.step.slot_mapping)
            tokens = self._writer.write(tokens, caches, prologue and cut_prologue(prologue, num_tokens))
            if metadata.num_decodes:
                self._decode(tokens.q.contiguous(), caches, out_THD[rows], metadata)
            first, starts = slice(metadata.num_decodes, num_tokens), metadata.prompt_starts
            if metadata.pages is not None:
                self._prompts.attend(tokens.q[first], caches, out_THD[first], starts, metadata.pages, metadata.step)
            elif metadata.prompts_are_new:
                given, length = (tokens.q[first], tokens.k[first], tokens.v[first]), metadata.step.max_query_len
                self._flash(*given, starts, starts, length, length, out_THD[first])
        return out_THD

    def _decode(self, q_THD: torch.Tensor, caches: Caches, out_THD: torch.Tensor, metadata: SplitStep) -> None:
        step, count = metadata.step, metadata.num_decodes
        pages = (step.block_table[:count], step.seq_lens[:count], step.block_table.stride(0))
        keys, values, *scales = caches
        given = (keys, values, *pages, *(scales or (None, None)))
        if metadata.is_padding is None:
            self._assembly(q_THD, *given, step.max_decode_len, out_THD, step.query_start_loc)
        else:
            self._assembly(q_THD[:count], *given, 1, out_THD[:count], None)
            out_THD[:count].masked_fill_(metadata.is_padding, 0)

    @cached_property
    def _flash(self) -> Any:
        """New prompts, over the keys and values of this step."""
        return bind_flash(self.problem.scale)

    @cached_property
    def _assembly(self) -> Any:
        return library().bind(
            "pa_fwd_asm",
            "Q", "K", "V", "block_tables", "context_lens", "block_tables_stride0", "K_QScale", "V_QScale", "max_qlen",
            "out_", "qo_indptr",
        )  # fmt: skip
