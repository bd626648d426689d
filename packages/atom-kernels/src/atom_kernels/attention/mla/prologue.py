"""The reference of the prologue: norm of latents, rotation of the rotary parts, in plain torch.

Shapes: T tokens, H heads, D query_dim, L latent_dim.
"""

from __future__ import annotations

import torch

from atom_kernels.attention.mla.problem import MlaProblem, MlaPrologue
from atom_kernels.norm.contract import rms_norm
from atom_kernels.rotary.contract import apply_rotary


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
    if prologue.norm_weight is not None:
        latent = rms_norm(latent, prologue.norm_weight, prologue.norm_eps)
    key = key.unsqueeze(1)
    if prologue.cos_sin_cache is not None:
        turned, key = apply_rotary(
            turned, key, prologue.positions, prologue.cos_sin_cache, interleaved=prologue.interleaved
        )
    return torch.cat((query, turned), dim=-1), torch.cat((latent, key.squeeze(1)), dim=-1)
