"""Attention: raw q, k, v in; head norms, rotation, cache write and attention as one mixer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_kernels.attention import AttentionProblem, AttentionPrologue
from atom_models.layers.mixers.cache_scales import with_cache_scales
from atom_models.layers.mixers.mixer import Mixer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixers.rotary import Rotary, StepAngles
    from atom_models.layers.norms.norm import RMSNorm


class Attention(Mixer):
    """``forward(q, k, v, positions) -> [T, num_heads * head_dim]``, causal, over everything cached so far.

    Positions are int64 ``[T]``, or the angles of the step (`StepAngles`), which `rotary` gave.

    Args:
        num_heads, num_kv_heads: how many heads this rank has.
        head_dim: elements of a head.
        prefix: the layer's name, by which hosts know its cache.
        rotary: angles for q and k; None rotates nothing.
        q_norm, k_norm: norms over each head, before rotation.
        scale: factor on ``q @ k``; None is ``head_dim ** -0.5``.
        sliding_window: tokens visible to a query including itself.
        sinks: the layer has a learned sink logit for each head, stored as ``<parent>.sinks``.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``.
    """

    def __init__(
        self,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        context: BuildContext,
        prefix: str,
        rotary: Rotary | None = None,
        q_norm: RMSNorm | None = None,
        k_norm: RMSNorm | None = None,
        scale: float | None = None,
        sliding_window: int | None = None,
        sinks: bool = False,
        soft_cap: float | None = None,
    ) -> None:
        problem = AttentionProblem(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5 if scale is None else scale,
            dtype=context.dtype_name,
            cache=context.cache_format,
            block_size=context.block_size,
            sliding_window=sliding_window,
            has_sinks=sinks,
            soft_cap=soft_cap,
            batch_invariant=context.platform.batch_invariant,
            sees_ahead=context.sees_ahead,
        )
        problem, scales = with_cache_scales(problem, prefix.rpartition(".")[0], context)
        super().__init__(problem, prefix=prefix, context=context, cache_scales=scales)
        self._q_shape, self._kv_shape = (num_heads, head_dim), (num_kv_heads, head_dim)
        self._rotary = rotary
        self.q_norm, self.k_norm = q_norm, k_norm

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor | StepAngles
    ) -> torch.Tensor:
        if isinstance(positions, torch.Tensor):
            return super().forward(q, k, v, positions)
        return super().forward(q, k, v, *positions)

    def mix(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        positions: torch.Tensor,
        cos_sin: torch.Tensor | None = None,
    ) -> torch.Tensor:
        num_tokens = q.shape[0]
        heads = (
            q.view(num_tokens, *self._q_shape),
            k.view(num_tokens, *self._kv_shape),
            v.view(num_tokens, *self._kv_shape),
        )
        return self._host.mix(heads, self._prologue(positions, cos_sin)).view(num_tokens, -1)

    def _prologue(self, positions: torch.Tensor, cos_sin: torch.Tensor | None) -> AttentionPrologue | None:
        q_norm, k_norm, rotary = self.q_norm, self.k_norm, self._rotary
        if rotary is None and q_norm is None and k_norm is None:
            return None
        if cos_sin is None and rotary is not None:
            cos_sin = rotary.cos_sin_cache
        return AttentionPrologue(
            positions,
            cos_sin_cache=cos_sin,
            interleaved=rotary is not None and rotary.interleaved,
            q_norm_weight=q_norm.effective_weight if q_norm is not None else None,
            k_norm_weight=k_norm.effective_weight if k_norm is not None else None,
            norm_eps=q_norm.eps if q_norm is not None else k_norm.eps if k_norm is not None else 1e-6,
        )
