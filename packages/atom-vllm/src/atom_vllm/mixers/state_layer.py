"""Layers that keep a state of each request: vLLM owns the states as it does those of its own, and our kernels update
them in place.

vLLM gives a layer pages, one a state: the inputs that the next convolution sees, what the delta rule remembers, and
what pads the page to one of keys and values. Page 0 is no request's, so our slots are counted from the page behind it.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum
from vllm.v1.attention.backends.utils import mamba_get_block_table_tensor

from atom_kernels.delta import DeltaNetProblem
from atom_kernels.mixers import MixerPlan, select_mixer
from atom_kernels.protocols import Caches
from atom_vllm.mixers.kernels import AtomKernels
from atom_vllm.mixers.metadata import AtomMetadata, AtomMetadataBuilder


@lru_cache(maxsize=16)
def plan_states(problem: DeltaNetProblem) -> MixerPlan:
    """One plan for all equal layers."""
    return select_mixer(problem)


class AtomStateMetadataBuilder(AtomMetadataBuilder):
    """Builds the metadata of layers with states: each request's page is its block table."""

    keeps_states = True

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self._spec, self._mode = kv_cache_spec, vllm_config.cache_config.mamba_cache_mode

    def build(self, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> AtomMetadata:
        metadata = super().build(common_prefix_len, common_attn_metadata, fast_build)
        geometry = metadata.geometry
        pages = mamba_get_block_table_tensor(geometry.block_table, geometry.seq_lens, self._spec, self._mode)
        return AtomMetadata(replace(geometry, block_table=pages[:, :1]))


class AtomStateBackend(AttentionBackend):
    """See the module's docstring."""

    @staticmethod
    def get_name() -> str:
        return "ATOM_STATES"

    @staticmethod
    def get_impl_cls() -> type[AttentionImpl[Any]]:
        return StateKernels

    @staticmethod
    def get_builder_cls() -> type[AtomStateMetadataBuilder]:
        return AtomStateMetadataBuilder

    @classmethod
    def is_ssm(cls) -> bool:
        return True


class StateKernels(AtomKernels, AttentionImpl[Any]):
    """One layer's delta net."""

    keeps_states = True

    def __init__(self, problem: DeltaNetProblem) -> None:
        self.problem = problem

    def take_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """The weights of our model's layer, packed by its kernel."""
        self.weights = plan_states(self.problem).prepare(weights)

    def plan_for(self, block_size: int) -> MixerPlan:
        """A page is one state, whatever number of tokens vLLM counts for it."""
        return plan_states(self.problem)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: Caches,
        attn_metadata: AtomMetadata | None,
        output: torch.Tensor,
        *_: Any,
        **__: Any,
    ) -> torch.Tensor:
        """Raw queries, keys and values in one; what makes decays, and betas -> `output` ``[T, *problem.out_shape]``."""
        if attn_metadata is None:  # vLLM measures memory
            return output.zero_()
        return output.copy_(self.mix((query, key, value), kv_cache, attn_metadata, None))

    def bind(self, kv_cache: Caches) -> tuple[MixerPlan, Caches]:
        return plan_states(self.problem), tuple(states[1:] for states in kv_cache)


class StateLayer(nn.Module, MambaBase):
    """One layer's states, as vLLM sees them."""

    def __init__(self, problem: DeltaNetProblem, layer_name: str, vllm_config: Any) -> None:
        super().__init__()
        self.layer_name = layer_name
        self.impl: Any = StateKernels(problem)
        self.kv_cache: Caches = ()
        self._tensors = problem.layout.tensors
        layers = vllm_config.compilation_config.static_forward_context
        if layer_name in layers:
            raise ValueError(f"vLLM has a layer {layer_name} already")
        layers[layer_name] = self

    @property
    def mamba_type(self) -> MambaAttentionBackendEnum:
        return MambaAttentionBackendEnum.GDN_ATTN

    def get_state_shape(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tensor.shape for tensor in self._tensors)

    def get_state_dtype(self) -> tuple[torch.dtype, ...]:
        return tuple(getattr(torch, tensor.dtype) for tensor in self._tensors)

    def get_attn_backend(self) -> type[AtomStateBackend]:
        return AtomStateBackend
