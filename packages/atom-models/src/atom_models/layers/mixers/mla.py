"""Multi-head latent attention over cached latents, as a mixer.

DeepSeek-AI 2024, "DeepSeek-V2", https://arxiv.org/abs/2405.04434, section 2.1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from atom_kernels.attention.mla import MlaProblem, MlaPrologue
from atom_models.layers.mixers.cache_scales import with_cache_scales
from atom_models.layers.mixers.mixer import Mixer

if TYPE_CHECKING:
    from atom_models.build_context import BuildContext
    from atom_models.layers.mixers.rotary import Rotary
    from atom_models.layers.norms.norm import RMSNorm


class LatentAttention(Mixer):
    """``forward(q, kv, positions) -> [T, num_heads * v_head_dim]``, causal, over everything cached so far.

    Where the problem is sparse, ``forward(q, kv, positions, chosen)`` sees the chosen positions only: int32
    ``[T, top_k]``, as `LightningIndex` gives them.

    q is ``[T, num_heads * query_dim]``, kv ``[T, latent_dim]``, both raw. It holds ``<parent>.kv_b_proj``, which turns
    latents into keys and values, in the form that its kernel wants: queries may be multiplied by one half of it instead
    (absorbed), so it never is a linear of its own.

    Args:
        problem: this rank's.
        prefix: the layer's name, by which hosts know its cache.
        rotary: angles for the last part of queries and latents; None for none.
        norm: the norm that latents go through before they are cached.
    """

    linears = MappingProxyType({"kv_b": "kv_b_proj"})

    def __init__(
        self, problem: MlaProblem, *, context: BuildContext, prefix: str, rotary: Rotary | None, norm: RMSNorm
    ) -> None:
        if rotary is not None and rotary.cos_sin_cache.shape[1] != problem.qk_rope_head_dim:
            turned = f"{rotary.cos_sin_cache.shape[1]} of {problem.qk_rope_head_dim}"
            raise ValueError(f"{prefix}: {turned} rotary elements would turn; latent attention turns all of them")
        problem, scales = with_cache_scales(problem, prefix.rpartition(".")[0], context)
        super().__init__(problem, prefix=prefix, context=context, cache_scales=scales)
        self._q_shape = (problem.num_heads, problem.query_dim)
        self._rotary = rotary
        self.norm = norm

    def mix(self, q: torch.Tensor, kv: torch.Tensor, positions: torch.Tensor, *chosen: torch.Tensor) -> torch.Tensor:
        inputs = (q.view(q.shape[0], *self._q_shape), kv, *chosen)
        return self._host.mix(inputs, self.prologue(positions)).view(q.shape[0], -1)

    def prologue(self, positions: torch.Tensor) -> MlaPrologue:
        """What is done to queries and latents at `positions` first."""
        norm, rotary = self.norm, self._rotary
        return MlaPrologue(
            positions,
            cos_sin_cache=None if rotary is None else rotary.cos_sin_cache,
            interleaved=rotary is not None and rotary.interleaved,
            norm_weight=norm.effective_weight,
            norm_eps=norm.eps,
        )


def mla_scale(query_dim: int, rope_parameters: Mapping[str, Any]) -> float:
    """The factor on ``q @ k``: ``query_dim ** -0.5``, times the square of YaRN's temperature if the config has one."""
    scale, factor = query_dim**-0.5, float(rope_parameters.get("factor") or 1.0)
    all_dim = rope_parameters.get("mscale_all_dim")
    if rope_parameters.get("rope_type", "default") == "default" or not all_dim or factor <= 1:
        return scale
    return scale * (0.1 * float(all_dim) * math.log(factor) + 1.0) ** 2
