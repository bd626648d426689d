"""Absorbed queries: multiplied by what makes keys of latents, so that they meet the latents themselves.

Shapes: T tokens, H heads, D query_dim, N qk_nope_head_dim, V v_head_dim, C kv_lora_rank, L latent_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from atom_kernels.attention.mla.problem import MlaProblem


@dataclass(frozen=True)
class AbsorbedWeights:
    """Views of the weights that make keys ``[H, N, C]`` and values ``[H, V, C]`` from a latent.

    Attributes:
        scale: ``[1]``: a number is what is cached of it times this; None for 1.
    """

    key: torch.Tensor
    value: torch.Tensor
    scale: torch.Tensor | None = None


def split_kv_b(problem: MlaProblem, kv_b_weight: torch.Tensor) -> AbsorbedWeights:
    """The two halves of a checkpoint's kv_b_proj, by head."""
    weight = kv_b_weight.view(problem.num_heads, -1, problem.kv_lora_rank)
    return AbsorbedWeights(*weight.split([problem.qk_nope_head_dim, problem.v_head_dim], dim=1))


def absorb(problem: MlaProblem, q_THD: torch.Tensor, weights: AbsorbedWeights) -> torch.Tensor:
    """Queries as latents meet them, ``[T, H, L]``."""
    query_THN, turned = q_THD.split([problem.qk_nope_head_dim, problem.qk_rope_head_dim], dim=-1)
    return torch.cat((torch.einsum("thn,hnc->thc", query_THN, weights.key), turned), dim=-1)
