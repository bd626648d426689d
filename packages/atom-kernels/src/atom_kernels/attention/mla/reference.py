"""Latent attention over pages, written to be read: request by request, in float32, keys and values expanded.

Shapes: T tokens, H heads, D query_dim, N qk_nope_head_dim, V v_head_dim, C kv_lora_rank, L keys of a request.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.cache_write import write_cache
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.attention.reference import attend, gather_tokens
from atom_kernels.mixers.backend import MixerBackend, MixerRunner

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
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
        cached = gather_tokens(cache, block_table[request], lengths[request])
        latent_LC, rotary_key = cached[:, :rank], cached[:, rank:]
        k_LHN = torch.einsum("lc,hnc->lhn", latent_LC, w_key_HNC)
        k_LHD = torch.cat((k_LHN, rotary_key.unsqueeze(1).expand(-1, num_heads, -1)), dim=-1)
        v_LHV = torch.einsum("lc,hvc->lhv", latent_LC, w_value_HVC)
        out_THV[first:last] = attend(q_THD[first:last].float(), k_LHD, v_LHV, scale=scale).to(q_THD.dtype)
    return out_THV


# --- the backend that `select_mixer` falls back to --------------------------------------------------------------------


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
        write_cache(caches, (kv[written],), metadata.slot_mapping[written])
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


BACKEND = MixerBackend(name="reference", create=lambda problem, layout: ReferenceMla(problem))
