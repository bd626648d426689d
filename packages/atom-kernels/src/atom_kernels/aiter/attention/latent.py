"""Latent attention on AITER: queries absorb the weights that make keys, and attend to the cached latents.

Decodes go through the persistent `mla_decode_fwd`, chunks of prompts through `mla_prefill_fwd`. New
prompts need no cache: their keys and values are expanded for `flash_attn_varlen_func`.

Latents in float8 are stored over one scale of the layer. Decodes read them as they are. Prompts read a copy, since
their kernels know only bfloat16.

Shapes: T tokens, H heads, P heads padded to a number that the kernels take, N qk_nope_head_dim, E qk_rope_head_dim,
D = N + E, V v_head_dim, C kv_lora_rank, L = C + E.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.aiter.attention.flash import bind_flash
from atom_kernels.aiter.attention.latent_metadata import DecodeWork, LatentMetadata, LatentSteps
from atom_kernels.aiter.attention.latent_prologue import LatentPrologue
from atom_kernels.aiter.attention.pages import PageList
from atom_kernels.aiter.attention.steps import SplitStep
from atom_kernels.aiter.latent_products import latent_products
from atom_kernels.aiter.library import library
from atom_kernels.aiter.tables import unit_scale
from atom_kernels.mixers.backend import MixerRunner
from atom_kernels.platform import detect_platform

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.plan import BoundPlan
    from atom_kernels.protocols import BatchGeometry, Caches

_MULTIPLE_HEADS = 16
_PAGED = ("q", "kv_buffer", "o", "qo_indptr", "kv_indptr", "kv_indices", "kv_last_page_lens")
# The buffers that say how work is split, by the names of `mla_decode_fwd` and by those that they are made under.
_SPLIT = {
    "work_meta_data": "work_metadata_ptrs",
    "work_indptr": "work_indptr",
    "work_info_set": "work_info_set",
    "reduce_indptr": "reduce_indptr",
    "reduce_final_map": "reduce_final_map",
    "reduce_partial_map": "reduce_partial_map",
}
# Heads that `mla_prefill_fwd` takes: all of the largest models, or a few at a time.
_MANY_HEADS = 128


@dataclass(frozen=True)
class AiterMlaWeights:
    """For each head.

    Attributes:
        absorb: the product with ``[H, C, N]``, which maps a query's unrotated part to the space of latents.
        expand: ``[H, N, C]`` and ``[H, V, C]`` side by side as ``[H * (N + V), C]``, as checkpoints have them.
        value: the product with ``[H, V, C]``, which maps a latent to its value.
        scale: float32 ``[1]``, that of cached latents.
    """

    absorb: BoundPlan
    expand: torch.Tensor
    value: BoundPlan
    scale: torch.Tensor


class AiterMla(MixerRunner):
    """See the module's docstring. Every length is read on the device: a captured step may be replayed with others."""

    capturable = True

    def __init__(self, problem: MlaProblem) -> None:
        self.problem = problem
        self._heads = -(-problem.num_heads // _MULTIPLE_HEADS) * _MULTIPLE_HEADS
        self._is_float8 = problem.kv_cache_dtype != problem.dtype
        # A copy of the latents for any lengths would be too large for a graph.
        self.captures_prompts = not self._is_float8
        self._prologue = LatentPrologue(problem.kv_lora_rank, is_float8=self._is_float8)
        self._steps = LatentSteps(self._heads, problem.block_size, getattr(torch, problem.kv_cache_dtype))

    def prepare(self, weights: Mapping[str, torch.Tensor]) -> AiterMlaWeights:
        problem, kv_b = self.problem, weights["kv_b"]
        weight = kv_b.view(problem.num_heads, -1, problem.kv_lora_rank)
        key_HNC, value_HVC = weight.split([problem.qk_nope_head_dim, problem.v_head_dim], dim=1)
        scale = weights["latent_scale"] if "latent_scale" in weights else unit_scale(kv_b.device)
        products = latent_products(problem, detect_platform())
        absorb = products.keys.prepare({"weight": key_HNC.transpose(1, 2)})
        value = products.values.prepare({"weight": value_HVC})
        return AiterMlaWeights(absorb, kv_b, value, scale)

    def build_metadata(self, geometry: BatchGeometry) -> LatentMetadata:
        return self._steps.build(geometry)

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: LatentMetadata,
        *,
        weights: AiterMlaWeights,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        q_THD, kv_TL = inputs
        split = metadata.split
        count = split.step.num_tokens
        out_THV = q_THD.new_zeros((*q_THD.shape[:2], self.problem.v_head_dim))
        if not count:
            return out_THV
        # New prompts need no latents from the cache.
        first = split.num_decodes if split.prompts_are_new else count
        step = _Step(q_THD, kv_TL, split.step.slot_mapping, weights, caches[0], metadata, prologue)
        if first:
            out_THV[:first] = self._absorbed(step.rows(0, first))
        if first < count:
            out_THV[first:count] = self._expanded(step.rows(first, count))
        return out_THV

    # --- absorbed ----------------------------------------------------------------------------------------------------

    def _absorbed(self, step: _Step) -> torch.Tensor:
        problem, metadata = self.problem, step.metadata
        query_TPL = self._place(step)
        # Rows of no request find nothing.
        found_TPC = query_TPL.new_zeros((*query_TPL.shape[:2], problem.kv_lora_rank))
        if metadata.split.pages is not None:
            self._attend_prompts(query_TPL, step, found_TPC, metadata.split, metadata.split.pages)
        if metadata.decodes is not None:
            self._attend_decodes(query_TPL, step, found_TPC, metadata.decodes, metadata.split.is_padding)
        return step.weights.value(found_TPC[:, : problem.num_heads])

    def _place(self, step: _Step) -> torch.Tensor:
        """Write latents to the cache; absorbed queries ``[T, P, L]``."""
        problem, heads, nope = self.problem, self.problem.num_heads, self.problem.qk_nope_head_dim
        latent_TC, key_TE = self._prologue.normed(step.kv, step.prologue)
        # Heads of padding may hold anything: their results are not read.
        query_TPL = step.q.new_empty((step.q.shape[0], self._heads, problem.latent_dim))
        absorbed_THC = step.weights.absorb(step.q[..., :nope])
        self._prologue.place(
            absorbed_THC, step.q[..., nope:], latent_TC, key_TE, step.cache,
            step.slots, step.prologue, query_TPL[:, :heads], step.weights.scale,
        )  # fmt: skip
        return query_TPL

    def _attend_decodes(
        self,
        query_TPL: torch.Tensor,
        step: _Step,
        found_TPC: torch.Tensor,
        work: DecodeWork,
        is_padding: torch.Tensor | None,
    ) -> None:
        rows, pages = slice(0, work.num_rows), work.pages
        found_RPC = found_TPC[rows]
        scales = (unit_scale(found_TPC.device), step.weights.scale) if self._is_float8 else (None, None)
        self._decode(
            query_TPL[rows], _as_pages(step.cache), found_RPC, work.starts, pages.indptr, pages.indices,
            pages.last_page_lens, work.max_queries, *(work.buffers[name] for name in _SPLIT.values()), *scales,
        )  # fmt: skip
        if is_padding is not None:
            found_RPC.masked_fill_(is_padding, 0)

    def _attend_prompts(
        self,
        query_TPL: torch.Tensor,
        step: _Step,
        found_TPC: torch.Tensor,
        split: SplitStep,
        pages: PageList,
    ) -> None:
        """The kernel takes 16 heads or 128: others a few at a time."""
        latents, indices = _as_pages(step.cache), pages.indices
        if self._is_float8:
            latents, indices = (
                self._copied(step, indices),
                torch.arange(len(indices), dtype=torch.int32, device=indices.device),
            )
        group = _MANY_HEADS if self._heads == _MANY_HEADS else _MULTIPLE_HEADS
        for first in range(0, self._heads, group):
            mine = slice(split.num_decodes, None), slice(first, first + group)
            found = torch.zeros_like(found_TPC[mine], memory_format=torch.contiguous_format)
            self._prefill(
                query_TPL[mine].contiguous(), latents, found, split.prompt_starts, pages.indptr, indices,
                pages.last_page_lens, split.step.max_query_len,
            )  # fmt: skip
            found_TPC[mine] = found

    def _copied(self, step: _Step, slots: torch.Tensor) -> torch.Tensor:
        """The latents of `slots` in the layer's own dtype, as pages."""
        # Bytes are gathered: indexing knows no float8.
        codes = step.cache.view(torch.uint8).flatten(0, 1)[slots].view(step.cache.dtype)
        return _as_pages((codes.float() * step.weights.scale).to(step.q.dtype))

    @cached_property
    def _decode(self) -> Any:
        return library().bind(
            "mla_decode_fwd", *_PAGED, "max_seqlen_q", *_SPLIT, "q_scale", "kv_scale", sm_scale=self.problem.scale
        )

    @cached_property
    def _prefill(self) -> Any:
        return library().bind("mla_prefill_fwd", *_PAGED, "max_seqlen_q", sm_scale=self.problem.scale)

    # --- expanded ----------------------------------------------------------------------------------------------------

    def _expanded(self, step: _Step) -> torch.Tensor:
        problem, nope = self.problem, self.problem.qk_nope_head_dim
        latent_TC, key_TE = self._prologue.normed(step.kv, step.prologue)
        turned_THE, key_TE = self._prologue.rotated(step.q[..., nope:], key_TE, step.prologue)
        self._prologue.store(latent_TC, key_TE, step.cache, step.slots, step.weights.scale)
        if self._is_float8:
            latent_TC, key_TE = (_as_cached(x, step.cache.dtype, step.weights.scale) for x in (latent_TC, key_TE))
        pairs = torch.nn.functional.linear(latent_TC, step.weights.expand).unflatten(1, (problem.num_heads, -1))
        key_THD = torch.cat((pairs[..., :nope], key_TE[:, None].expand(-1, problem.num_heads, -1)), dim=-1)
        query_THD = torch.cat((step.q[..., :nope], turned_THE), dim=-1)
        split = step.metadata.split
        starts, length = split.prompt_starts, split.step.max_query_len
        out_THV = query_THD.new_empty((*query_THD.shape[:2], problem.v_head_dim))
        self._flash(query_THD, key_THD, pairs[..., nope:], starts, starts, length, length, out_THV)
        return out_THV

    @cached_property
    def _flash(self) -> Any:
        return bind_flash(self.problem.scale)


@dataclass(frozen=True)
class _Step:
    """The layer's inputs for some rows of the step."""

    q: torch.Tensor
    kv: torch.Tensor
    slots: torch.Tensor
    weights: AiterMlaWeights
    cache: torch.Tensor
    metadata: LatentMetadata
    prologue: MlaPrologue | None

    def rows(self, first: int, last: int) -> _Step:
        """The same of fewer rows."""
        rows, prologue = slice(first, last), self.prologue
        if prologue is not None:
            prologue = replace(prologue, positions=prologue.positions[rows])
        return replace(self, q=self.q[rows], kv=self.kv[rows], slots=self.slots[rows], prologue=prologue)


def _as_cached(x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor) -> torch.Tensor:
    """What is read again of `x` that was cached."""
    largest = torch.finfo(dtype).max
    return ((x / scale).clamp(-largest, largest).to(dtype).float() * scale).to(x.dtype)


def _as_pages(cache: torch.Tensor) -> torch.Tensor:
    """Every token a page: ``[slots, 1, 1, L]``."""
    return cache.view(-1, 1, 1, cache.shape[-1])
