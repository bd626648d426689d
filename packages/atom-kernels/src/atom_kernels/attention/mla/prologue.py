"""The reference of the prologue: norm of latents, rotation of the rotary parts, in plain torch.

Shapes: T tokens, H heads, D query_dim, L latent_dim.
"""

from __future__ import annotations

import torch

from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
from atom_kernels.attention.prologue import normalize_heads, rotate_heads


def apply_mla_prologue(
    problem: MlaProblem, q_THD: torch.Tensor, kv_TL: torch.Tensor, prologue: MlaPrologue | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and latents as attention uses them, in the dtype they came in.

    Latents are normalized in float32 and rounded, the rotary parts turned in float32 and rounded: bit for bit what
    separate norm and rotary operators give.
    """
    if prologue is None:
        return q_THD, kv_TL
    latent, key = kv_TL.split([problem.kv_lora_rank, problem.qk_rope_head_dim], dim=-1)
    query, turned = q_THD.split([problem.qk_nope_head_dim, problem.qk_rope_head_dim], dim=-1)
    latent = normalize_heads(latent, prologue.norm_weight, prologue.norm_eps)
    if prologue.cos_sin_cache is not None:
        angles = prologue.cos_sin_cache[prologue.positions]
        key = rotate_heads(key.unsqueeze(1), angles, prologue.interleaved).squeeze(1)
        turned = rotate_heads(turned, angles, prologue.interleaved)
    return torch.cat((query, turned), dim=-1), torch.cat((latent, key), dim=-1)
