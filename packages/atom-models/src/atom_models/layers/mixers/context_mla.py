"""Latent attention of ranks that share a context: each keeps the latents of some positions.

A rank has the queries of its own heads and, as all ranks do, the latents of all new tokens. The ranks gather their
queries, look with all of them at their own latents, and put together what they found.

Shapes: T tokens, H heads of this rank, A heads of all ranks, C kv_lora_rank, V v_head_dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.attention.context import PartialMlaProblem, merge_parts
from atom_kernels.attention.mla.absorption import absorb, split_kv_b
from atom_models.layers.mixers.mla import LatentAttention

if TYPE_CHECKING:
    from atom_kernels.attention.mla import MlaProblem
    from atom_models.build_context import BuildContext


class ContextLatentAttention(LatentAttention):
    """`LatentAttention` over the latents of all ranks of ``context.groups.context``."""

    shares_context = True

    def __init__(self, problem: MlaProblem, *, context: BuildContext, **rest: Any) -> None:
        ranks = context.groups.context
        super().__init__(PartialMlaProblem.of(problem, ranks.size, ranks.rank), context=context, **rest)
        self._own, self._ranks = problem, ranks
        # Its host gives what is found for the heads of all ranks.
        self._out_features, self._out_dtype = problem.num_heads * problem.v_head_dim, context.dtype
        self._kv_b: Any = None

    def pack(self, weights: dict[str, torch.Tensor]) -> None:
        if "kv_b" in weights:
            self._kv_b = split_kv_b(self._own, weights["kv_b"])
        super().pack(weights)

    def mix(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, *chosen: torch.Tensor) -> torch.Tensor:
        own_THL = absorb(self._own, q.view(q.shape[0], *self._q_shape), self._kv_b)
        q_TAL = self._ranks.all_gather(own_THL, 1)
        found_TAX = self._host.mix((q_TAL, kv), self.prologue(positions))
        latent_THC = merge_parts(found_TAX, self._ranks).to(q.dtype)
        return torch.einsum("thc,hvc->thv", latent_THC, self._kv_b.value).flatten(1)


def make_latent_attention(problem: MlaProblem, *, context: BuildContext, **rest: Any) -> LatentAttention:
    """A layer of this rank's `problem`, which shares its context where ranks do; `rest` as `LatentAttention` has it."""
    kind = ContextLatentAttention if context.groups.context.size > 1 else LatentAttention
    return kind(problem, context=context, **rest)
