"""Sparse latent attention over pages, written to be read: request by request, in float32, keys and values expanded.

Shapes: T tokens, H heads, D query_dim, N qk_nope_head_dim, V v_head_dim, C kv_lora_rank, K top_k, L keys of a request.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.cache_write import read_tokens
from atom_kernels.attention.mla.reference import ReferenceMla, keys_and_values
from atom_kernels.mixers.backend import MixerBackend
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.protocols import Caches


def sparse_latent_attention(
    q_THD: torch.Tensor,
    chosen_TK: torch.Tensor,
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
    """Latent attention of a batch that mixes decodes and chunks of prompts, where each query sees what was chosen.

    All is as in `latent_attention`, but for the keys: those of token t are the positions of its request in
    ``chosen_TK[t]``. A request of up to K tokens may be computed as if all positions up to a query's own were chosen,
    which `lightning_index` guarantees.

    Args:
        chosen_TK: int32, positions up to the token's own, in ascending order, and -1 behind the last. How many there
            are is the lesser of K and the token's position + 1.

    Returns:
        ``[T, H, V]`` in the dtype of the queries; rows of no request are zeros.
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
        for row in range(first, last):
            seen = chosen_TK[row][chosen_TK[row] >= 0].long()
            scores_HL = torch.einsum("hd,lhd->hl", q_THD[row].float(), k_LHD[seen]) * scale
            out_HV = torch.einsum("hl,lhv->hv", scores_HL.softmax(dim=-1), v_LHV[seen])
            out_THV[row] = out_HV.to(q_THD.dtype)
    return out_THV


# --- the backend that `select_mixer` falls back to --------------------------------------------------------------------

BACKEND = MixerBackend(
    name="reference",
    create=lambda problem, layout: ReferenceMla(problem, sparse_latent_attention),
    cache_scales=ALL_SCALES,
    is_fallback=True,
)
