"""Latent attention over pages, written to be read: request by request, in float32, keys and values expanded.

Shapes: T tokens, H heads, D query_dim, N qk_nope_head_dim, V v_head_dim, C kv_lora_rank, L keys and
Q queries of a request.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.kv_write import write_latents
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.mixers.backend import MixerBackend, MixerRunner

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.platform import Platform
    from atom_kernels.protocols import BatchGeometry, Caches


def latent_attention(
    q_THD: torch.Tensor,
    cache: torch.Tensor,
    kv_b_weight: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    v_head_dim: int,
    scale: float,
) -> torch.Tensor:
    """Causal latent attention of a batch that mixes decodes and chunks of prompts; latents are in the cache already.

    The queries of request ``r`` are rows ``query_start_loc[r]:query_start_loc[r+1]`` and stand at the last positions of
    its ``seq_lens[r]`` tokens, which lie in the blocks ``block_table[r]``. Rows of no request give zeros.

    Args:
        q_THD: queries, their rotary part last and rotated.
        cache: ``[num_blocks, block_size, C + rope]``, normed latents with the rotated key behind them.
        kv_b_weight: ``[H * (N + V), C]``: for each head, what makes its keys and then its values from a latent.

    Returns:
        ``[T, H, V]`` in the dtype of the queries.
    """
    num_heads, rank = q_THD.shape[1], kv_b_weight.shape[1]
    expand = kv_b_weight.float().view(num_heads, -1, rank)
    w_key_HNC, w_value_HVC = expand[:, :-v_head_dim], expand[:, -v_head_dim:]
    out_THV = torch.zeros(*q_THD.shape[:2], v_head_dim, dtype=q_THD.dtype, device=q_THD.device)
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    for request, (first, last) in enumerate(itertools.pairwise(starts)):
        if first == last:
            continue
        cached = _gather(cache, block_table[request], lengths[request])
        latent_LC, rotary_key = cached[:, :rank], cached[:, rank:]
        k_LHN = torch.einsum("lc,hnc->lhn", latent_LC, w_key_HNC)
        k_LHD = torch.cat((k_LHN, rotary_key.unsqueeze(1).expand(-1, num_heads, -1)), dim=-1)
        v_LHV = torch.einsum("lc,hvc->lhv", latent_LC, w_value_HVC)
        out_THV[first:last] = _attend(q_THD[first:last].float(), k_LHD, v_LHV, scale).to(q_THD.dtype)
    return out_THV


def _gather(cache: torch.Tensor, block_ids: torch.Tensor, length: int) -> torch.Tensor:
    blocks = block_ids[: -(-length // cache.shape[1])].tolist()
    return torch.cat([cache[block].float() for block in blocks])[:length]


def _attend(q_QHD: torch.Tensor, k_LHD: torch.Tensor, v_LHV: torch.Tensor, scale: float) -> torch.Tensor:
    num_queries, num_keys = q_QHD.shape[0], k_LHD.shape[0]
    scores_HQL = torch.einsum("qhd,lhd->hql", q_QHD, k_LHD) * scale
    positions = torch.arange(num_keys, device=q_QHD.device)
    visible_QL = positions <= positions[num_keys - num_queries :].unsqueeze(1)
    weights_HQL = torch.softmax(scores_HQL.masked_fill(~visible_QL, float("-inf")), dim=-1)
    return torch.einsum("hql,lhv->qhv", weights_HQL, v_LHV)


# --- the backend that `select_mixer` falls back to --------------------------------------------------------------------


def supports(problem: MlaProblem, platform: Platform) -> str | None:
    """Everything, slowly."""
    return None


@dataclass(frozen=True)
class ReferenceMla(MixerRunner):
    """Prologue, cache write and `latent_attention` one after the other."""

    problem: MlaProblem

    def build_metadata(self, geometry: BatchGeometry) -> BatchGeometry:
        return geometry

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: BatchGeometry,
        *,
        weights: torch.Tensor,
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        q_THD, kv = inputs
        q_THD, kv = apply_mla_prologue(self.problem, q_THD, kv, prologue)
        written = slice(0, metadata.num_tokens)
        write_latents(kv[written], caches[0], metadata.slot_mapping[written])
        return latent_attention(
            q_THD,
            caches[0],
            weights,
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            v_head_dim=self.problem.v_head_dim,
            scale=self.problem.scale,
        )


BACKEND = MixerBackend(name="reference", supports=supports, create=lambda problem, layout: ReferenceMla(problem))
