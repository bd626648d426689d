"""The lightning index of sparse attention, as a mixer: it remembers a small key of each token.

DeepSeek-AI 2025, "DeepSeek-V3.2", https://arxiv.org/abs/2512.02556, section 2.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from atom_kernels.attention.index import IndexProblem, IndexPrologue
from atom_models.layers.mixers.mixer import Mixer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixers.rotary import Rotary


class LightningIndex(Mixer):
    """``forward(q, k, head_weights, positions) -> int32 [T, top_k]``: the positions that each token attends to.

    q is ``[T, num_heads * head_dim]``, k ``[T, head_dim]``, both not rotated yet, head_weights ``[T, num_heads]``.
    Positions are in ascending order, with -1 behind the last. Ranks do not share the heads: each chooses by itself,
    and all choose the same.

    Args:
        problem: the index.
        prefix: the layer's name, by which hosts know its cache.
        rotary: angles for the leading part of queries and keys.
    """

    def __init__(self, problem: IndexProblem, *, context: BuildContext, prefix: str, rotary: Rotary) -> None:
        if rotary.cos_sin_cache.shape[1] != problem.rotary_dim:
            turned = f"{rotary.cos_sin_cache.shape[1]} of {problem.rotary_dim}"
            raise ValueError(f"{prefix}: {turned} rotary elements would turn; an index turns all of them")
        super().__init__(problem, prefix=prefix, context=context)
        self._q_shape = (problem.num_heads, problem.head_dim)
        self._rotary = rotary

    def mix(
        self, q: torch.Tensor, k: torch.Tensor, head_weights: torch.Tensor, positions: torch.Tensor
    ) -> torch.Tensor:
        rotary = self._rotary
        prologue = IndexPrologue(positions, rotary.cos_sin_cache, rotary.interleaved)
        return self._host.mix((q.view(q.shape[0], *self._q_shape), k, head_weights), prologue)
