"""Attention over pages, written to be read: request by request, in float32, with every rule in a line of its own.

Shapes: T tokens, R requests, H query heads, K key/value heads, D head_dim, L keys of a request, Q queries of a request.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.cache_write import read_tokens, write_cache
from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.attention.weights import NO_WEIGHTS, AttentionWeights
from atom_kernels.mixers.backend import MixerBackend, MixerRunner, reads_any_strides
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.problem import AttentionProblem, AttentionPrologue
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches


def paged_attention(
    q_THD: torch.Tensor,
    caches: Caches,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    sinks_H: torch.Tensor | None = None,
    soft_cap: float | None = None,
    head_scales: Sequence[torch.Tensor] | None = None,
    sees_until: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of a batch that mixes decodes and chunks of prompts; keys and values are in the cache already.

    The queries of request ``r`` are rows ``query_start_loc[r]:query_start_loc[r+1]`` and stand at the last positions of
    its ``seq_lens[r]`` tokens, which lie in the blocks ``block_table[r]``. Rows of no request give zeros.
    Caches and `head_scales` are as `write_cache` takes them, and `sees_until` lets tokens see later ones, as
    `BatchGeometry` has it.

    Returns:
        ``[T, H, D]`` in the dtype of the queries.
    """
    out_THD = torch.zeros_like(q_THD)
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    for request, (first, last) in enumerate(itertools.pairwise(starts)):
        if first == last:
            continue
        k_LKD, v_LKD = read_tokens(caches, block_table[request], lengths[request], head_scales)
        out_THD[first:last] = attend(
            q_THD[first:last].float(),
            k_LKD,
            v_LKD,
            scale=scale,
            sliding_window=sliding_window,
            sinks_H=sinks_H,
            soft_cap=soft_cap,
            sees_until_Q=None if sees_until is None else sees_until[first:last],
        ).to(q_THD.dtype)
    return out_THD


def attend(
    q_QHD: torch.Tensor,
    k_LKD: torch.Tensor,
    v_LKD: torch.Tensor,
    *,
    scale: float,
    sliding_window: int | None = None,
    sinks_H: torch.Tensor | None = None,
    soft_cap: float | None = None,
    sees_until_Q: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal attention of one request, whose queries stand at its last positions."""
    num_queries, num_heads, _ = q_QHD.shape
    num_keys, num_kv_heads, _ = k_LKD.shape
    k_LHD = k_LKD.repeat_interleave(num_heads // num_kv_heads, dim=1)
    v_LHD = v_LKD.repeat_interleave(num_heads // num_kv_heads, dim=1)
    scores_HQL = torch.einsum("qhd,lhd->hql", q_QHD, k_LHD) * scale
    if soft_cap is not None:
        scores_HQL = soft_cap * torch.tanh(scores_HQL / soft_cap)
    query_positions = torch.arange(num_keys - num_queries, num_keys, device=q_QHD.device).unsqueeze(1)
    key_positions = torch.arange(num_keys, device=q_QHD.device)
    last_seen = query_positions
    if sees_until_Q is not None:
        last_seen = torch.maximum(query_positions, sees_until_Q.unsqueeze(1))
    visible_QL = key_positions <= last_seen
    if sliding_window is not None:
        visible_QL &= key_positions > query_positions - sliding_window
    scores_HQL = scores_HQL.masked_fill(~visible_QL, float("-inf"))
    if sinks_H is not None:
        sinks_HQ1 = sinks_H.float().view(-1, 1, 1).expand(-1, num_queries, 1)
        scores_HQL = torch.cat((scores_HQL, sinks_HQ1), dim=-1)
    weights_HQL = torch.softmax(scores_HQL, dim=-1)[..., :num_keys]
    return torch.einsum("hql,lhd->qhd", weights_HQL, v_LHD)


# --- the backend that `select_mixer` falls back to -------------------------------------------------------------


@dataclass(frozen=True)
class ReferenceAttention(MixerRunner):
    """Prologue, cache write and `paged_attention` one after the other."""

    problem: AttentionProblem
    layout: CacheLayout

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> AttentionWeights:
        return AttentionWeights.of(weights)

    def build_metadata(self, geometry: BatchGeometry) -> BatchGeometry:
        return geometry

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: BatchGeometry,
        *,
        weights: AttentionWeights | None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        (q_THD, k_TKD, v_TKD), weights = inputs, weights or NO_WEIGHTS
        q_THD, k_TKD = apply_prologue(q_THD, k_TKD, prologue)
        written = slice(0, metadata.num_tokens)
        write_cache(caches, (k_TKD[written], v_TKD[written]), metadata.slot_mapping[written], weights.head_scales)
        return paged_attention(
            q_THD,
            caches,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            scale=self.problem.scale,
            sliding_window=self.problem.sliding_window,
            sinks_H=weights.sinks,
            soft_cap=self.problem.soft_cap,
            head_scales=weights.head_scales,
            sees_until=metadata.sees_until,
        )


BACKEND = MixerBackend(
    name="reference",
    create=ReferenceAttention,
    why_not_strided=reads_any_strides,
    cache_scales=ALL_SCALES,
    is_fallback=True,
)
