"""What torch runs in place of our attention: keys, values and latents lie dense, nothing is rotated or written.

Shapes: B requests of one length, H query heads, K key/value heads, Q queries of a request, L tokens of it, D head_dim;
of latents C kv_lora_rank, R rotary part, N the rest of a query, V v_head_dim.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from atom_kernels.attention.index.problem import IndexProblem
from atom_kernels.attention.mla.problem import MlaProblem
from atom_kernels.attention.problem import AttentionProblem


def plain_attention(
    problem: AttentionProblem,
    q_BHQD: torch.Tensor,
    k_BKLD: torch.Tensor,
    v_BKLD: torch.Tensor,
    sinks_H: torch.Tensor | None = None,
) -> torch.Tensor:
    """`scaled_dot_product_attention`, and softmax of all scores where sinks or a window are none of its arguments."""
    queries, window = q_BHQD.shape[2], problem.sliding_window
    if queries == 1 and window is not None:
        k_BKLD, v_BKLD = k_BKLD[:, :, -window:], v_BKLD[:, :, -window:]
        window = None
    if sinks_H is None and window is None:
        return F.scaled_dot_product_attention(
            q_BHQD, k_BKLD, v_BKLD, is_causal=queries > 1, enable_gqa=True, scale=problem.scale
        )
    # Heads that share keys are more queries of them.
    q_BKMD = q_BHQD.unflatten(1, (problem.num_kv_heads, -1)).flatten(2, 3)
    scores_BKML = (q_BKMD * problem.scale) @ k_BKLD.transpose(-1, -2)
    scores_BHQL = scores_BKML.unflatten(2, (-1, queries)).flatten(1, 2)
    if queries > 1:
        scores_BHQL = scores_BHQL.masked_fill(_hidden(queries, k_BKLD.shape[2], window, q_BHQD.device), float("-inf"))
    if sinks_H is not None:
        sinks = sinks_H.to(q_BHQD.dtype).view(1, -1, 1, 1).expand(len(q_BHQD), -1, queries, 1)
        scores_BHQL = torch.cat((scores_BHQL, sinks), dim=-1)
    shares_BHQL = scores_BHQL.softmax(dim=-1)[..., : k_BKLD.shape[2]]
    shares_BKML = shares_BHQL.unflatten(1, (problem.num_kv_heads, -1)).flatten(2, 3)
    return (shares_BKML @ v_BKLD).unflatten(2, (-1, queries)).flatten(1, 2)


def plain_absorbed(problem: MlaProblem, q_BHC: torch.Tensor, latents_BLC: torch.Tensor) -> torch.Tensor:
    """From queries that were multiplied by the projection of keys, ``[B, H, C + R]``, to latents ``[B, H, C]``."""
    shares_BHL = ((q_BHC * problem.scale) @ latents_BLC.transpose(-1, -2)).softmax(dim=-1)
    return shares_BHL @ latents_BLC[..., : problem.kv_lora_rank]


def plain_latent(
    problem: MlaProblem, q_BHQD: torch.Tensor, latents_BLC: torch.Tensor, kv_b_weight: torch.Tensor
) -> torch.Tensor:
    """Decodes absorbed, prompts multiplied out to heads: ``[B, H, Q, V]``."""
    rank, nope = problem.kv_lora_rank, problem.qk_nope_head_dim
    w_key_HNC, w_value_HVC = kv_b_weight.view(problem.num_heads, -1, rank).split([nope, problem.v_head_dim], dim=1)
    if q_BHQD.shape[2] == 1:
        q_nope_BHN, q_rope_BHR = q_BHQD[:, :, 0].split([nope, problem.qk_rope_head_dim], dim=-1)
        q_BHC = torch.cat((torch.einsum("bhn,hnc->bhc", q_nope_BHN, w_key_HNC), q_rope_BHR), dim=-1)
        found_BHC = plain_absorbed(problem, q_BHC, latents_BLC)
        return torch.einsum("bhc,hvc->bhv", found_BHC, w_value_HVC).unsqueeze(2)
    latent_BLC, rotary_key_BLR = latents_BLC.split([rank, problem.qk_rope_head_dim], dim=-1)
    k_BHLN = torch.einsum("blc,hnc->bhln", latent_BLC, w_key_HNC)
    v_BHLV = torch.einsum("blc,hvc->bhlv", latent_BLC, w_value_HVC)
    k_BHLD = torch.cat((k_BHLN, rotary_key_BLR.unsqueeze(1).expand(-1, problem.num_heads, -1, -1)), dim=-1)
    return F.scaled_dot_product_attention(q_BHQD, k_BHLD, v_BHLV, is_causal=True, scale=problem.scale)


def plain_index(
    problem: IndexProblem, q_BHD: torch.Tensor, k_BLD: torch.Tensor, head_weights_BH: torch.Tensor
) -> torch.Tensor:
    """int64 ``[B, K]``: the positions of a decode, in whatever order `topk` has."""
    products_BHL = (q_BHD @ k_BLD.transpose(-1, -2)).float().relu()
    scores_B1L = (head_weights_BH.float() * problem.scale).unsqueeze(1) @ products_BHL
    return scores_B1L.squeeze(1).topk(problem.top_k).indices


def plain_chosen(
    problem: MlaProblem,
    q_BHD: torch.Tensor,
    latents_BLC: torch.Tensor,
    chosen_BK: torch.Tensor,
    kv_b_weight: torch.Tensor,
) -> torch.Tensor:
    """A decode over the latents at some positions, gathered first: ``[B, H, 1, V]``."""
    wide_BKC = chosen_BK.unsqueeze(-1).expand(-1, -1, latents_BLC.shape[-1])
    return plain_latent(problem, q_BHD.unsqueeze(2), latents_BLC.gather(1, wide_BKC), kv_b_weight)


def _hidden(queries: int, length: int, window: int | None, device: torch.device) -> torch.Tensor:
    """Bool ``[Q, L]``: what the queries, which are the last tokens, do not see."""
    back_QL = torch.arange(length - queries, length, device=device).unsqueeze(1) - torch.arange(length, device=device)
    hidden_QL = back_QL < 0
    return hidden_QL if window is None else hidden_QL | (back_QL >= window)
