"""Latent attention inside of vLLM: a layer that owns vLLM's cache of latents, and our kernels over it.

vLLM's own layer of it splits work into parts of its own; ours is one call, so it is known to vLLM by the interface
that all layers with caches share. Its cache is ``[blocks, (1,) tokens, latent_dim]`` without gaps in a block. Where
ranks share a context these are the rank's own tokens, as vLLM counts them; our problem's blocks have those of all.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionImpl
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from atom_kernels.attention.context import PartialMlaProblem
from atom_kernels.attention.mla import MlaProblem
from atom_kernels.mixers import MixerPlan, select_mixer
from atom_kernels.protocols import Caches
from atom_vllm.mixers.attention import AtomAttentionBackend
from atom_vllm.mixers.kernels import AtomKernels

logger = logging.getLogger("vllm.atom")


@lru_cache(maxsize=16)
def plan_latent(problem: MlaProblem) -> MixerPlan:
    """One plan for all equal layers."""
    plan = select_mixer(problem)
    if plan.holds is not None and plan.holds.note is not None:
        logger.warning("%s", plan.holds.note)
    return plan


class AtomLatentBackend(AtomAttentionBackend):
    """See the module's docstring."""

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return LatentKernels

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        return (num_blocks, block_size, head_size)

    @classmethod
    def is_mla(cls) -> bool:
        return True


class LatentKernels(AtomKernels, AttentionImpl[Any]):
    """One layer's latent attention.

    Attributes:
        can_return_lse_for_decode: vLLM asks this of layers that merge what its ranks found, which ours do themselves.
    """

    can_return_lse_for_decode = True

    def __init__(self, problem: MlaProblem) -> None:
        self.num_heads, self.head_size, self.scale = problem.num_heads, problem.latent_dim, problem.scale
        self.num_kv_heads = 1
        self.problem = problem
        self._num_ranks = problem.num_ranks if isinstance(problem, PartialMlaProblem) else 1

    def take_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """The weights of our model's layer, packed by its kernel."""
        self.weights = plan_latent(self.problem).prepare(weights)

    def plan_for(self, block_size: int) -> MixerPlan:
        """The plan over blocks of which a rank keeps `block_size` tokens."""
        return plan_latent(replace(self.problem, block_size=block_size * self._num_ranks))

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        output_scale: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        """Raw queries, raw latents as keys and values, positions -> `output` ``[T, *problem.out_shape]``."""
        if attn_metadata is None:  # vLLM measures memory
            return output.zero_()
        output.copy_(self.mix((query, key), kv_cache, attn_metadata, self.owner.prologue(output_scale)))
        return output

    def bind(self, kv_cache: torch.Tensor) -> tuple[MixerPlan, Caches]:
        latents_BSC = kv_cache.squeeze(1) if kv_cache.dim() == 4 else kv_cache
        if latents_BSC.shape[0] > 1 and not latents_BSC.is_contiguous():
            raise NotImplementedError(f"latents with gaps between them, of strides {latents_BSC.stride()}")
        return self.plan_for(latents_BSC.shape[1]), (latents_BSC,)


class LatentLayer(nn.Module, AttentionLayerBase):
    """One layer's latents, as vLLM sees them."""

    def __init__(self, problem: MlaProblem, layer_name: str, vllm_config: Any) -> None:
        super().__init__()
        self.layer_name = layer_name
        self.num_heads = problem.num_heads
        self.impl: Any = LatentKernels(problem)
        self.kv_cache = torch.tensor([])
        self._dtype = getattr(torch, problem.kv_cache_dtype)
        layers = vllm_config.compilation_config.static_forward_context
        if layer_name in layers:
            raise ValueError(f"vLLM has a layer {layer_name} already")
        layers[layer_name] = self

    def get_attn_backend(self) -> type[AtomLatentBackend]:
        return AtomLatentBackend

    def get_kv_cache_spec(self, vllm_config: Any) -> MLAAttentionSpec:
        cache = vllm_config.cache_config
        return MLAAttentionSpec(
            block_size=cache.block_size,
            num_kv_heads=1,
            head_size=self.impl.head_size,
            dtype=self._dtype,
            cache_dtype_str=str(cache.cache_dtype),
        )
