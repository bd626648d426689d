"""Chunks of prompts from shuffled blocks, which may have scales.

Shapes: T tokens of prompts, S cached tokens, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.attention.flash import bind_flash
from atom_kernels.aiter.attention.pages import PageList, list_pages
from atom_kernels.aiter.attention.steps import list_prompt_tokens
from atom_kernels.aiter.library import library

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem
    from atom_kernels.protocols import BatchGeometry, Caches


class PagedPrompts:
    """Prompts by `mha_batch_prefill_func`, in the cache's own dtype."""

    def __init__(self, problem: AttentionProblem) -> None:
        self.problem = problem

    def list(self, step: BatchGeometry, first: int) -> PageList:
        """The pages of the requests from `first` on."""
        table, lengths = step.block_table[first:], step.seq_lens[first:]
        return list_pages(table, lengths, self.problem.block_size, step.max_seq_len)

    def attend(
        self,
        q_THD: torch.Tensor,
        caches: Caches,
        out_THD: torch.Tensor,
        starts: torch.Tensor,
        pages: PageList,
        step: BatchGeometry,
    ) -> None:
        """Fill `out_THD`, where `starts` are the first rows of the requests."""
        self._batch_prefill(
            q_THD, *caches, starts, pages.indptr, pages.indices, step.max_query_len, step.max_seq_len, out_THD,
            pages.last_page_lens,
        )  # fmt: skip

    @cached_property
    def _batch_prefill(self) -> Any:
        return library().bind(
            "mha_batch_prefill_func",
            "q", "k", "v", "cu_seqlens_q", "kv_indptr", "kv_page_indices", "max_seqlen_q", "max_seqlen_k", "out",
            "kv_last_page_lens",
            softmax_scale=self.problem.scale,
            logits_soft_cap=0.0,
            causal=True,
            window_size=(-1, -1),
        )  # fmt: skip


class GatheredPrompts:
    """Prompts by `flash_attn_varlen_func`, over a copy of the cached tokens, multiplied by their scales.

    The copy has room for as many tokens as the prompts of a step see, as far as the host knows: a graph, which is
    captured for any lengths, would need too many.
    """

    def __init__(self, problem: AttentionProblem) -> None:
        self.problem = problem
        self._dtype = getattr(torch, problem.dtype)

    def list(self, step: BatchGeometry, first: int) -> PageList:
        """The slots of the requests from `first` on."""
        return list_prompt_tokens(step, first, self.problem.block_size)

    def attend(
        self,
        q_THD: torch.Tensor,
        caches: Caches,
        out_THD: torch.Tensor,
        starts: torch.Tensor,
        pages: PageList,
        step: BatchGeometry,
    ) -> None:
        """Fill `out_THD`, where `starts` are the first rows of the requests."""
        k_SKD, v_SKD = self._gather(caches, pages.indices)
        self._flash(q_THD, k_SKD, v_SKD, starts, pages.indptr, step.max_query_len, step.max_seq_len, out_THD)

    def _gather(self, caches: Caches, slots: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        keys, values, key_scale, value_scale = caches
        block, offset = slots // self.problem.block_size, slots % self.problem.block_size
        group, place = offset // values.shape[4], offset % values.shape[4]
        # Bytes are gathered: indexing knows no float8.
        k_SKD = keys.view(torch.uint8)[block, :, :, offset].flatten(2).view(keys.dtype)
        v_SKD = values.view(torch.uint8)[block, :, group, :, place].view(values.dtype)
        scales = (scale[block, :, offset].unsqueeze(2) for scale in (key_scale, value_scale))
        k_SKD, v_SKD = (x.float().mul_(scale).to(self._dtype) for x, scale in zip((k_SKD, v_SKD), scales, strict=True))
        return k_SKD, v_SKD

    @cached_property
    def _flash(self) -> Any:
        return bind_flash(self.problem.scale)
