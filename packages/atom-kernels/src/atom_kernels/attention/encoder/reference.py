"""Attention of encoders, written to be read: text by text, in float32.

Shapes: T tokens, H heads, D head_dim, L tokens of one text.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.prologue import apply_prologue
from atom_kernels.mixers.backend import MixerBackend, MixerRunner, reads_any_strides
from atom_kernels.mixers.cache_format import ALL_SCALES

if TYPE_CHECKING:
    from atom_kernels.attention.encoder.problem import EncoderAttentionProblem
    from atom_kernels.attention.problem import AttentionPrologue
    from atom_kernels.protocols import BatchGeometry, CacheLayout, Caches


def encoder_attention(
    q_THD: torch.Tensor,
    k_THD: torch.Tensor,
    v_THD: torch.Tensor,
    query_start_loc: torch.Tensor,
    *,
    scale: float,
    window: int | None = None,
    causal: bool = False,
) -> torch.Tensor:
    """Attention within each text, in both directions unless it is `causal`. Devlin et al. 2019, https://arxiv.org/abs/1810.04805.

    Text ``r`` is rows ``query_start_loc[r]:query_start_loc[r+1]``. With `window` a token sees those at most so far away
    on each side (Warner et al. 2024, https://arxiv.org/abs/2412.13663). Rows of no text give zeros.

    Returns:
        ``[T, H, D]`` in the dtype of the queries.
    """
    out_THD = torch.zeros_like(q_THD, memory_format=torch.contiguous_format)
    for first, last in itertools.pairwise(query_start_loc.tolist()):
        q_LHD, k_LHD, v_LHD = (x[first:last].float() for x in (q_THD, k_THD, v_THD))
        scores_HLL = torch.einsum("qhd,khd->hqk", q_LHD, k_LHD) * scale
        if window is not None:
            positions = torch.arange(last - first, device=q_THD.device)
            distances = (positions.unsqueeze(1) - positions).abs()
            scores_HLL = scores_HLL.masked_fill(distances > window, float("-inf"))
        if causal:
            behind = torch.ones(scores_HLL.shape[1:], dtype=torch.bool, device=q_THD.device).triu(1)
            scores_HLL = scores_HLL.masked_fill(behind, float("-inf"))
        out_LHD = torch.einsum("hqk,khd->qhd", torch.softmax(scores_HLL, dim=-1), v_LHD)
        out_THD[first:last] = out_LHD.to(q_THD.dtype)
    return out_THD


@dataclass(frozen=True)
class ReferenceEncoderAttention(MixerRunner):
    """Prologue and `encoder_attention` one after the other."""

    problem: EncoderAttentionProblem
    layout: CacheLayout

    def build_metadata(self, geometry: BatchGeometry) -> torch.Tensor:
        return geometry.query_start_loc

    def forward(
        self,
        inputs: tuple[torch.Tensor, ...],
        caches: Caches,
        metadata: torch.Tensor,
        *,
        weights: None,
        prologue: AttentionPrologue | None,
    ) -> torch.Tensor:
        q_THD, k_THD = apply_prologue(inputs[0], inputs[1], prologue)
        problem = self.problem
        return encoder_attention(
            *(q_THD, k_THD, inputs[2], metadata),
            scale=problem.scale,
            window=problem.window,
            causal=problem.causal,
        )


BACKEND = MixerBackend(
    name="reference",
    create=ReferenceEncoderAttention,
    why_not_strided=reads_any_strides,
    cache_scales=ALL_SCALES,
    is_fallback=True,
)
