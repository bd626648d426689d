"""The reference of the fused prologue: head norms and rotation of queries and keys, in plain torch.

Shapes: T tokens, H query heads, K key/value heads, D head_dim, R rotary_dim.
"""

from __future__ import annotations

import torch

from atom_kernels.attention.problem import AttentionPrologue


def apply_prologue(
    q_THD: torch.Tensor, k_TKD: torch.Tensor, prologue: AttentionPrologue | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries and keys as attention uses them, in the dtype they came in.

    Each head is normalized in float32 and rounded, then rotated in float32 and rounded: bit for bit what separate norm
    and rotary operators give.
    """
    if prologue is None:
        return q_THD, k_TKD
    q_THD = normalize_heads(q_THD, prologue.q_norm_weight, prologue.norm_eps)
    k_TKD = normalize_heads(k_TKD, prologue.k_norm_weight, prologue.norm_eps)
    if prologue.cos_sin_cache is None:
        return q_THD, k_TKD
    cos_sin_TR = prologue.cos_sin_cache[prologue.positions]
    return (
        rotate_heads(q_THD, cos_sin_TR, prologue.interleaved),
        rotate_heads(k_TKD, cos_sin_TR, prologue.interleaved),
    )


def normalize_heads(x_THD: torch.Tensor, weight_D: torch.Tensor | None, eps: float) -> torch.Tensor:
    """RMS norm over the last dimension in float32, rounded once; without a weight nothing happens."""
    if weight_D is None:
        return x_THD
    x = x_THD.float()
    x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return (x * weight_D.float()).to(x_THD.dtype)


def rotate_heads(x_THD: torch.Tensor, cos_sin_TR: torch.Tensor, interleaved: bool) -> torch.Tensor:
    """The leading elements of each head turned by the angles ``[T, cosines then sines]`` of its token, in float32."""
    rotary_dim = cos_sin_TR.shape[-1]
    cos, sin = cos_sin_TR.unsqueeze(1).chunk(2, dim=-1)
    turned, rest = x_THD[..., :rotary_dim].float(), x_THD[..., rotary_dim:]
    if interleaved:
        first, second = turned[..., 0::2], turned[..., 1::2]
        turned = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    else:
        first, second = turned.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    turned = turned.to(x_THD.dtype)
    return torch.cat((turned, rest), dim=-1) if rest.shape[-1] else turned
