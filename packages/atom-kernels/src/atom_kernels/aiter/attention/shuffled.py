"""Attention over shuffled blocks: decodes by AITER's assembly, `pa_fwd_asm`, chunks of prompts by `prompts`.

Float8 is cached with a scale for each token and head, which these kernels of the assembly want.

Shapes: T tokens, R requests, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.attention.cache_write import CacheWriter, NewTokens
from atom_kernels.aiter.attention.limits import takes_queries
from atom_kernels.aiter.attention.pages import PageList
from atom_kernels.aiter.attention.prompts import GatheredPrompts, NewPrompts, PagedPrompts
from atom_kernels.aiter.attention.unified import UnifiedMetadata, cut_prologue, leading_decodes, step_metadata
from atom_kernels.aiter.library import library
from atom_kernels.mixers.backend import MixerRunner

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches


@dataclass(frozen=True)
class ShuffledMetadata:
    """One step: decodes first, then requests of more queries.

    Attributes:
        num_decodes: requests for `pa_fwd_asm`; `max_decode_len` queries each at most.
        is_padding: bool ``[num_decodes, 1, 1]``, where row r of the decodes is no request's; None where the kernel is
            told which rows are whose, and leaves others alone.
        prompt_starts: int32, first row of each other request, counted from the first row that is none of a decode.
        prompts_are_new: there are others, and nothing of them was cached before.
        pages: of the other requests; None for none, and for new ones.
    """

    step: UnifiedMetadata
    num_decodes: int
    max_decode_len: int
    is_padding: torch.Tensor | None
    prompt_starts: torch.Tensor
    prompts_are_new: bool
    pages: PageList | None


class AiterShuffledAttention(MixerRunner):
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: AttentionProblem, layout: CacheLayout) -> None:
        self.problem, self.layout = problem, layout
        self._writer = CacheWriter(problem, layout)
        has_scales = layout.name == "shuffled_scaled"
        self.captures_prompts = not has_scales
        self._new_prompts = NewPrompts(problem)
        self._prompts = GatheredPrompts(problem) if has_scales else PagedPrompts(problem)

    def build_metadata(self, geometry: BatchGeometry) -> ShuffledMetadata:
        step = step_metadata(geometry)
        can_decode = takes_queries(self.problem, geometry.max_decode_len)
        num_decodes = leading_decodes(geometry, step, takes_queries=can_decode)
        starts, is_padding, pages = step.query_start_loc, None, None
        if num_decodes and geometry.max_decode_len == 1:
            # Row r is the query of request r, for requests without tokens come after those that have one.
            is_padding = (starts[1 : num_decodes + 1] <= starts[:num_decodes])[:, None, None]
        has_prompts = num_decodes < min(geometry.num_reqs, step.num_tokens)
        are_new = has_prompts and step.prompts_are_new and num_decodes == step.num_decodes
        if has_prompts and not are_new:
            pages = self._prompts.list(step, num_decodes)
        prompt_starts = starts[num_decodes:] - num_decodes
        return ShuffledMetadata(step, num_decodes, geometry.max_decode_len, is_padding, prompt_starts, are_new, pages)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: ShuffledMetadata,
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
            tokens = NewTokens(q_THD[rows], k_TKD[rows], v_TKD[rows], metadata.step.slots)
            tokens = self._writer.write(tokens, caches, prologue and cut_prologue(prologue, num_tokens))
            if metadata.num_decodes:
                self._decode(tokens.q.contiguous(), caches, out_THD[rows], metadata)
            first, starts = slice(metadata.num_decodes, num_tokens), metadata.prompt_starts
            if metadata.pages is not None:
                self._prompts.attend(tokens.q[first], caches, out_THD[first], starts, metadata.pages, metadata.step)
            elif metadata.prompts_are_new:
                given = (tokens.q[first], tokens.k[first], tokens.v[first], out_THD[first])
                self._new_prompts.attend(*given, starts, metadata.step)
        return out_THD

    def _decode(self, q_THD: torch.Tensor, caches: Caches, out_THD: torch.Tensor, metadata: ShuffledMetadata) -> None:
        step, count = metadata.step, metadata.num_decodes
        pages = (step.block_table[:count], step.seq_lens[:count], step.block_table.stride(0))
        keys, values, *scales = caches
        given = (keys, values, *pages, *(scales or (None, None)))
        if metadata.is_padding is None:
            self._assembly(q_THD, *given, metadata.max_decode_len, out_THD, step.query_start_loc)
        else:
            self._assembly(q_THD[:count], *given, 1, out_THD[:count], None)
            out_THD[:count].masked_fill_(metadata.is_padding, 0)

    @cached_property
    def _assembly(self) -> Any:
        return library().bind(
            "pa_fwd_asm",
            "Q", "K", "V", "block_tables", "context_lens", "block_tables_stride0", "K_QScale", "V_QScale", "max_qlen",
            "out_", "qo_indptr",
        )  # fmt: skip
