"""Attention of an encoder: a token sees the whole text, a window around it, or what is before; nothing is cached."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_kernels.attention import AttentionPrologue
from atom_kernels.attention.encoder import EncoderAttentionProblem
from atom_models.layers.mixers.mixer import Mixer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixers.rotary import Rotary


class EncoderAttention(Mixer):
    """``forward(q, k, v, positions) -> [T, num_heads * head_dim]``, within each text of a step.

    Args:
        num_heads: how many heads this rank has.
        head_dim: elements of a head.
        prefix: the layer's name.
        rotary: angles for q and k; None rotates nothing.
        window: a token sees those at most so far away on each side; None sees all.
        causal: a token sees none behind itself.
    """

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        *,
        context: BuildContext,
        prefix: str,
        rotary: Rotary | None = None,
        window: int | None = None,
        causal: bool = False,
    ) -> None:
        problem = EncoderAttentionProblem(
            num_heads=num_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            dtype=context.dtype_name,
            cache=context.cache_format,
            block_size=context.block_size,
            window=window,
            causal=causal,
        )
        super().__init__(problem, prefix=prefix, context=context)
        self._shape, self._rotary = (num_heads, head_dim), rotary

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        num_tokens = q.shape[0]
        heads = tuple(x.view(num_tokens, *self._shape) for x in (q, k, v))
        prologue = None
        if self._rotary is not None:
            table = self._rotary.cos_sin_cache
            prologue = AttentionPrologue(positions, cos_sin_cache=table, norm_eps=1e-6)
        return self._host.mix(heads, prologue).view(num_tokens, -1)
