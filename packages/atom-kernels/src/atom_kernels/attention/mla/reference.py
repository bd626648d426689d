"""Latent attention over pages, written to be read: request by request, in float32, keys and values expanded.

Shapes: T tokens, H heads, D query_dim, N qk_nope_head_dim, V v_head_dim, C kv_lora_rank, L keys of a request.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.cache_write import read_tokens, write_cache
from atom_kernels.attention.mla.prologue import apply_mla_prologue
from atom_kernels.attention.reference import attend
from atom_kernels.mixers.backend import MixerBackend, MixerRunner
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
    from atom_kernels.protocols import BatchGeometry, Caches


def latent_attention(
    q_THD: torch.Tensor,
    caches: Caches,
    kv_b_weight: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    block_table: torch.Tensor,
    *,
    v_head_dim: int,
    scale: float,
    latent_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Causal latent attention of a batch that mixes decodes and chunks of prompts; latents are in the cache already.

    The queries of request ``r`` are rows ``query_start_loc[r]:query_start_loc[r+1]`` and stand at the last positions of
    its ``seq_lens[r]`` tokens, which lie in the blocks ``block_table[r]``. Rows of no request give zeros.

    Args:
        q_THD: queries, their rotary part last and rotated.
        caches: ``[num_blocks, block_size, C + rope]``, normed latents with the rotated key behind them; where tokens
            have scales, these follow, ``[num_blocks, block_size]``.
        kv_b_weight: ``[H * (N + V), C]``: for each head, what makes its keys and then its values from a latent.
        latent_scale: ``[1]``: a number is what is cached of it times this; None for 1.

    Returns:
        ``[T, H, V]`` in the dtype of the queries.
    """
    expand_HEC = kv_b_weight.float().view(q_THD.shape[1], -1, kv_b_weight.shape[1])
    out_THV = torch.zeros(*q_THD.shape[:2], v_head_dim, dtype=q_THD.dtype, device=q_THD.device)
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    for request, (first, last) in enumerate(itertools.pairwise(starts)):
        if first == last:
            continue
        [cached] = read_tokens(
            caches, block_table[request], lengths[request], None if latent_scale is None else [latent_scale]
        )
        k_LHD, v_LHV = keys_and_values(cached, expand_HEC, v_head_dim)
        out_THV[first:last] = attend(q_THD[first:last].float(), k_LHD, v_LHV, scale=scale).to(q_THD.dtype)
    return out_THV


def keys_and_values(
    cached_LX: torch.Tensor, expand_HEC: torch.Tensor, v_head_dim: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys ``[L, H, D]`` and values ``[L, H, V]`` of all heads, from latents with the rotated key behind them.

    Args:
        cached_LX: ``[L, C + rope]``.
        expand_HEC: ``[H, N + V, C]``, what makes a head's keys and then its values from a latent.
    """
    num_heads, _, rank = expand_HEC.shape
    latent_LC, rotary_key = cached_LX[:, :rank], cached_LX[:, rank:]
    k_LHN = torch.einsum("lc,hnc->lhn", latent_LC, expand_HEC[:, :-v_head_dim])
    k_LHD = torch.cat((k_LHN, rotary_key.unsqueeze(1).expand(-1, num_heads, -1)), dim=-1)
    return k_LHD, torch.einsum("lc,hvc->lhv", latent_LC, expand_HEC[:, -v_head_dim:])


# --- the backend that `select_mixer` falls back to --------------------------------------------------------------------


@dataclass(frozen=True)
class ReferenceMla(MixerRunner):
    """Prologue, cache write and `attention` one after the other; inputs beyond queries and latents go to the last."""

    problem: MlaProblem
    attention: Callable[..., torch.Tensor] = latent_attention

    def prepare(self, weights: Mapping[str, torch.Tensor | None]) -> Mapping[str, torch.Tensor | None]:
        return weights

    def build_metadata(self, geometry: BatchGeometry) -> BatchGeometry:
        return geometry

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: BatchGeometry,
        *,
        weights: Mapping[str, torch.Tensor],
        prologue: MlaPrologue | None,
    ) -> torch.Tensor:
        q_THD, kv, *chosen = inputs
        q_THD, kv = apply_mla_prologue(self.problem, q_THD, kv, prologue)
        written = slice(0, metadata.num_tokens)
        scale = weights.get("latent_scale")
        write_cache(caches, (kv[written],), metadata.slot_mapping[written], None if scale is None else [scale])
        return self.attention(
            q_THD,
            *chosen,
            caches,
            weights["kv_b"],
            metadata.query_start_loc,
            metadata.seq_lens,
            metadata.block_table,
            v_head_dim=self.problem.v_head_dim,
            scale=self.problem.scale,
            latent_scale=scale,
        )


BACKEND = MixerBackend(
    name="reference",
    create=lambda problem, layout: ReferenceMla(problem),
    cache_scales=ALL_SCALES,
    is_fallback=True,
)
