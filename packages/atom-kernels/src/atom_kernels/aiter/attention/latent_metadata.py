"""What AITER's kernels of latent attention need to know of a step, in buffers that later steps write in place.

Shapes: R requests, H query heads, padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.attention.pages import PageList, list_tokens
from atom_kernels.aiter.attention.steps import SplitStep, list_prompt_tokens, split_step
from atom_kernels.aiter.library import library

if TYPE_CHECKING:
    from atom_kernels.protocols import BatchGeometry

# Queries of a request that the persistent kernel takes, and the heads that it takes them with.
MAX_QUERIES = 4
_MULTIPLE_HEADS = 16
_GRANULARITY = 16
_DTYPE = torch.bfloat16  # of queries
# In AITER's order.
_BUFFERS = (
    "work_metadata_ptrs",
    "work_indptr",
    "work_info_set",
    "reduce_indptr",
    "reduce_final_map",
    "reduce_partial_map",
)


@dataclass(frozen=True)
class DecodeWork:
    """The leading requests, of few queries each.

    Attributes:
        num_rows: rows of queries that may be theirs, known on the host.
        starts: int32 ``[R + 1]``, first row of each.
        max_queries: the most queries of a request.
        pages: their tokens; a request of none looks at the first slot of the cache.
        buffers: how the work is split, by the names of `get_mla_metadata_v1`.
    """

    num_rows: int
    starts: torch.Tensor
    max_queries: int
    pages: PageList
    buffers: dict[str, torch.Tensor]


@dataclass(frozen=True)
class LatentMetadata:
    """One step: requests of few queries, None for none, and the rest."""

    split: SplitStep
    decodes: DecodeWork | None


class LatentSteps:
    """Makes `LatentMetadata`; keeps one set of buffers for each number of decodes.

    Args:
        num_heads: padded to a number that the kernels take.
        block_size: tokens of a block.
        cache_dtype: the dtype of cached latents.
    """

    def __init__(self, num_heads: int, block_size: int, cache_dtype: torch.dtype) -> None:
        self._num_heads, self._block_size, self._cache_dtype = num_heads, block_size, cache_dtype
        self._buffers: dict[tuple[int, int, torch.device], dict[str, torch.Tensor]] = {}

    def build(self, geometry: BatchGeometry) -> LatentMetadata:
        list_prompts = partial(list_prompt_tokens, block_size=self._block_size)
        split = split_step(geometry, self._takes_queries(geometry.max_decode_len), list_prompts)
        return LatentMetadata(split, self._share_out(split) if split.num_decodes else None)

    def _takes_queries(self, max_queries: int) -> bool:
        return max_queries == 1 or (max_queries <= MAX_QUERIES and self._num_heads == _MULTIPLE_HEADS)

    def _share_out(self, split: SplitStep) -> DecodeWork:
        step, count, max_queries = split.step, split.num_decodes, split.step.max_decode_len
        seq_lens = step.seq_lens[:count]
        # Empty requests, which pad a batch, have undefined blocks.
        table = torch.where(seq_lens.unsqueeze(1) > 0, step.block_table[:count], 0)
        pages = list_tokens(table, seq_lens.clamp(min=1), self._block_size, step.max_seq_len)
        starts = step.query_start_loc[: count + 1]
        if split.is_padding is not None:
            starts = torch.arange(count + 1, dtype=torch.int32, device=starts.device)
        buffers = self._buffers_for(count, max_queries, starts.device)
        order = [buffers[name] for name in _BUFFERS]
        last_pages = (pages.last_page_lens,) if self._takes_last_pages else ()
        uniform = max_queries if max_queries == 1 else -1
        self._fill(starts, pages.indptr, *last_pages, *order, max_queries, uniform)
        return DecodeWork(min(count * max_queries, step.num_tokens), starts, max_queries, pages, buffers)

    def _buffers_for(self, count: int, max_queries: int, device: torch.device) -> dict[str, torch.Tensor]:
        key = (count, max_queries, device)
        if key not in self._buffers:
            described = self._describe(count, max_queries)
            shapes = (((shape,) if isinstance(shape, int) else shape, dtype) for shape, dtype in described)
            self._buffers[key] = {
                name: torch.zeros(shape, dtype=dtype, device=device)
                for name, (shape, dtype) in zip(_BUFFERS, shapes, strict=True)
            }
        return self._buffers[key]

    @cached_property
    def _describe(self) -> Any:
        return library().bind(
            "get_mla_metadata_info_v1",
            "batch_size", "max_seqlen_qo",
            num_head_qo=self._num_heads,
            q_dtype=_DTYPE,
            kv_dtype=self._cache_dtype,
            is_sparse=False,
            fast_mode=True,
        )  # fmt: skip

    @cached_property
    def _takes_last_pages(self) -> bool:
        return library().has("get_mla_metadata_v1", "kv_last_page_lens")

    @cached_property
    def _fill(self) -> Any:
        knows_types = library().has("get_mla_metadata_v1", "dtype_q")
        typed = {"dtype_q": _DTYPE, "dtype_kv": self._cache_dtype} if knows_types else {}
        return library().bind(
            "get_mla_metadata_v1",
            "seqlens_qo_indptr", "seqlens_kv_indptr", *(("kv_last_page_lens",) if self._takes_last_pages else ()),
            *_BUFFERS, "max_seqlen_qo", "uni_seqlen_qo",
            num_heads_per_head_k=self._num_heads,
            num_heads_k=1,
            is_causal=True,
            kv_granularity=_GRANULARITY,
            fast_mode=True,
            **typed,
        )  # fmt: skip
