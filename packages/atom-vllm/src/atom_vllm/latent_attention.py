"""Latent attention inside of vLLM: a layer that owns vLLM's cache of latents, and our kernels over it.

vLLM's own layer of it splits work into parts of its own; ours is one call, so it is known to vLLM by the interface
that all layers with caches share. Its cache is ``[blocks, (1,) tokens, latent_dim]`` without gaps in a block.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.attention.backend import AttentionImpl
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from atom_kernels.attention.mla import MlaPlan, MlaProblem, MlaPrologue, select_mla
from atom_models import BuildContext, attention_layers
from atom_vllm import compat
from atom_vllm.attention import AtomAttention, AtomAttentionBackend


@lru_cache(maxsize=16)
def plan_latent(problem: MlaProblem) -> MlaPlan:
    """One plan for all equal layers."""
    return select_mla(problem)


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


class LatentKernels(AttentionImpl[Any]):
    """What vLLM's operator for attention runs for a layer.

    Attributes:
        owner: our model's layer.
    """

    def __init__(self, problem: MlaProblem) -> None:
        self.num_heads, self.head_size, self.scale = problem.num_heads, problem.latent_dim, problem.scale
        self.num_kv_heads = 1
        self.problem = problem
        self.owner: Any = None
        self._bound: tuple[int, MlaPlan, tuple[torch.Tensor]] | None = None

    def plan_for(self, block_size: int) -> MlaPlan:
        """The plan over blocks of `block_size` tokens."""
        return plan_latent(replace(self.problem, block_size=block_size))

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: Any,
        output: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        """Raw queries, raw latents (`key`) and positions (`value`) -> `output` ``[T, num_heads, v_head_dim]``."""
        output.copy_(self.owner.attend(query.flatten(1), key, value).view(output.shape))
        return output

    def attend(
        self, q_THD: torch.Tensor, kv_TC: torch.Tensor, weights: Any, kv_cache: torch.Tensor, metadata: Any,
        prologue: MlaPrologue,
    ) -> torch.Tensor:  # fmt: skip
        """See `MlaPlan.forward`."""
        if self._bound is None or self._bound[0] != kv_cache.data_ptr():
            self._bound = self._bind(kv_cache)
        _, plan, caches = self._bound
        return plan.runner.forward(q_THD, kv_TC, weights, caches, metadata.of(plan), prologue=prologue)

    def _bind(self, kv_cache: torch.Tensor) -> tuple[int, MlaPlan, tuple[torch.Tensor]]:
        latents_BSC = kv_cache.squeeze(1) if kv_cache.dim() == 4 else kv_cache
        if latents_BSC.shape[0] > 1 and not latents_BSC.is_contiguous():
            raise NotImplementedError(f"latents with gaps between them, of strides {latents_BSC.stride()}")
        return kv_cache.data_ptr(), self.plan_for(latents_BSC.shape[1]), (latents_BSC,)


class LatentLayer(nn.Module, AttentionLayerBase):
    """One layer's latents, as vLLM sees them."""

    def __init__(self, problem: MlaProblem, layer_name: str, vllm_config: Any) -> None:
        super().__init__()
        self.layer_name = layer_name
        self.num_heads = problem.num_heads
        self.impl: Any = LatentKernels(problem)
        self.kv_cache = torch.tensor([])
        self._dtype = getattr(torch, problem.cache_dtype)
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


class VllmMlaHost:
    """`MlaHost` over a `LatentLayer`."""

    plan: MlaPlan | None = None  # the cache is vLLM's
    traceable = True

    def __init__(self, layer: LatentLayer, plan: MlaPlan) -> None:
        self.layer = layer
        self.prepare = plan.prepare
        self._value_shape = (plan.problem.num_heads, plan.problem.v_head_dim)
        self._encoded_name = compat.encode_layer_name(layer.layer_name)

    def attend(self, q_THD: torch.Tensor, kv_TC: torch.Tensor, weights: Any, *, prologue: MlaPrologue) -> torch.Tensor:
        if torch.compiler.is_compiling():
            out = q_THD.new_empty((q_THD.shape[0], *self._value_shape))
            torch.ops.vllm.unified_attention_with_output(q_THD, kv_TC, prologue.positions, out, self._encoded_name)
            return out
        metadata = get_forward_context().attn_metadata
        if metadata is None:  # vLLM measures memory
            return q_THD.new_zeros((q_THD.shape[0], *self._value_shape))
        layer = self.layer
        return layer.impl.attend(q_THD, kv_TC, weights, layer.kv_cache, metadata[layer.layer_name], prologue)


def latent_attention_factory(vllm_config: Any) -> Callable[[MlaProblem, str, BuildContext], VllmMlaHost]:
    """`BuildContext.latent_attention` inside of vLLM."""

    def make(problem: MlaProblem, layer_name: str, context: BuildContext) -> VllmMlaHost:
        return VllmMlaHost(LatentLayer(problem, layer_name, vllm_config), plan_latent(problem))

    return make


def connect_layers(model: nn.Module, vllm_config: Any) -> None:
    """Let our attention behind vLLM's operator find the layers of `model`."""
    known = vllm_config.compilation_config.static_forward_context
    for name, layer in attention_layers(model).items():
        if isinstance(known[name].impl, (AtomAttention, LatentKernels)):
            known[name].impl.owner = layer
