"""Our attention as a backend of vLLM's: its metadata becomes a `BatchGeometry`, its cache our layout over its bytes.

vLLM gives each layer one tensor, logically ``[num_blocks, num_kv_heads, block_size, 2 * head_dim]``, keys before
values, of any strides. Our kernels take the two halves as strided views. Where AITER is to norm, rotate and write in
one kernel, we ask for `keys_apart` instead.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any, ClassVar

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, MultipleOf

from atom_kernels.attention import AttentionProblem
from atom_kernels.mixers import MixerPlan
from atom_kernels.protocols import Caches
from atom_vllm.compat import layouts_with_keys_apart
from atom_vllm.mixers.cache_dtypes import FLOAT8_CACHES, cache_format
from atom_vllm.mixers.cache_view import Strides, plan_over_view, split_view
from atom_vllm.mixers.kernels import AtomKernels
from atom_vllm.mixers.keys_apart import keys_are_apart, plan_with_keys_apart, spec_with_keys_apart, split_apart
from atom_vllm.mixers.metadata import AtomMetadata, AtomMetadataBuilder


class AtomAttentionBackend(AttentionBackend):
    """See the module's docstring."""

    accept_output_buffer: bool = True
    forward_includes_kv_cache_update: bool = True
    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float32, torch.bfloat16, torch.float16]
    supported_kv_cache_dtypes: ClassVar[list[Any]] = ["auto", "float16", "bfloat16", *FLOAT8_CACHES]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"  # the name that vLLM keeps for backends from outside

    @staticmethod
    def get_impl_cls() -> type[AtomAttention]:
        return AtomAttention

    @staticmethod
    def get_builder_cls() -> type[AtomMetadataBuilder]:
        return AtomMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(16)]

    @staticmethod
    def get_kv_cache_shape(
        num_blocks: int, block_size: int, num_kv_heads: int, head_size: int, cache_dtype_str: str = "auto"
    ) -> tuple[int, ...]:
        """Asked for by vLLM before 0.29; later versions give every backend this view."""
        return (num_blocks, num_kv_heads, block_size, 2 * head_size)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """Asked for by vLLM since 0.29: how one layer's cache is cut."""
        return spec_with_keys_apart(spec) if keys_are_apart() else spec

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[Any, ...] | None:
        """Asked for by vLLM since 0.29: None is any."""
        return layouts_with_keys_apart() if keys_are_apart() else None

    @classmethod
    def supports_sink(cls) -> bool:
        return True

    @classmethod
    def supports_sliding_window(cls) -> bool:
        return True

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        return []  # any: selection has the last word


class AtomAttention(AtomKernels, AttentionImpl[Any]):
    """One layer's attention over pages."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = "decoder",
        kv_sharing_target_layer_name: str | None = None,
        sinks: torch.Tensor | None = None,
        **_: Any,
    ) -> None:
        refused = {
            "alibi": alibi_slopes is not None,
            f"attention of type {attn_type}": attn_type != "decoder",
            "layers that share another's cache": kv_sharing_target_layer_name is not None,
        }
        for what, is_asked in refused.items():
            if is_asked:
                raise NotImplementedError(
                    f"atom-vllm's attention has no {what}: set ATOM_DISABLE_VLLM_PLUGIN_ATTENTION=1 to let vLLM attend"
                )
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        self.kv_cache_dtype = kv_cache_dtype
        self.sinks = sinks
        self._window = sliding_window
        self._soft_cap = logits_soft_cap or None
        self._dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        self._cache = cache_format(kv_cache_dtype, self._dtype)
        self._keys_are_apart = keys_are_apart()

    def plan_for(self, block_size: int, strides: Strides | None = None) -> MixerPlan:
        """The plan over vLLM's blocks of `block_size` tokens; raises UnsupportedMixerError."""
        problem = AttentionProblem(
            num_heads=self.num_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_size,
            scale=self.scale,
            dtype=self._dtype,
            cache=self._cache,
            block_size=block_size,
            sliding_window=self._window,
            has_sinks=self.sinks is not None,
            soft_cap=self._soft_cap,
        )
        return plan_with_keys_apart(problem) if self._keys_are_apart else plan_over_view(problem, strides)

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: AtomMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Writes keys and values to their slots, and the result to `output` ``[T, num_heads, head_dim]``.

        vLLM's operator has no place for positions. There are no scales here, so traced models of ours, whose queries
        and keys are raw, give them as `output_scale`.
        """
        if attn_metadata is None:  # vLLM measures memory
            return output.zero_()
        if output_scale is not None:
            out = self.owner.mix(query, key, value, output_scale).view(-1, self.num_heads, self.head_size)
        else:
            out = self.mix((query, key, value), kv_cache, attn_metadata, None)
        output.view(-1, self.num_heads, self.head_size)[: out.shape[0]].copy_(out)
        return output

    def bind(self, kv_cache: torch.Tensor) -> tuple[MixerPlan, Caches]:
        if self._cache.dtype != self._dtype:
            kv_cache = kv_cache.view(getattr(torch, self._cache.dtype))  # vLLM knows bytes only
        if self._keys_are_apart:
            plan = self.plan_for(kv_cache.shape[2])
            caches = split_apart(kv_cache, plan.layout)
        else:
            caches = split_view(kv_cache)
            plan = self.plan_for(kv_cache.shape[2], caches[0].stride())
        # By now the layer's weights are loaded.
        sinks = {} if self.sinks is None else {"sinks": self.sinks.to(getattr(torch, self._dtype))}
        self.weights = plan.prepare(sinks)
        return plan, caches
