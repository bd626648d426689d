"""The reference of the fused prologue: head norms and rotation of queries and keys, in plain torch.

Shapes: T tokens, H query heads, K key/value heads, D head_dim.
"""

from __future__ import annotations

import torch

from atom_kernels.attention.problem import AttentionPrologue
from atom_kernels.norm.contract import rms_norm
from atom_kernels.rotary.contract import apply_rotary


def apply_prologue(
    q_THD: torch.Tensor, k_TKD: torch.Tensor, prologue: AttentionPrologue | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys as attention uses them, in the dtype they came in.

    Each head is normalized in float32 and rounded, then rotated in float32 and rounded: bit for bit what separate norm
    and rotary operators give.
    """
    if prologue is None:
        return q_THD, k_TKD
    if prologue.q_norm_weight is not None:
        q_THD = rms_norm(q_THD, prologue.q_norm_weight, prologue.norm_eps)
    if prologue.k_norm_weight is not None:
        k_TKD = rms_norm(k_TKD, prologue.k_norm_weight, prologue.norm_eps)
    if prologue.cos_sin_cache is None:
        return q_THD, k_TKD
    return apply_rotary(q_THD, k_TKD, prologue.positions, prologue.cos_sin_cache, interleaved=prologue.interleaved)
