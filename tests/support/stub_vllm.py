"""As much of vLLM's modules as `atom_vllm` touches, for tests where vLLM is not installed.

Only names, signatures and what calls what are here; whether vLLM is really so is for `make test-vllm` to say.
"""

from __future__ import annotations

import importlib.metadata
import math
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, TypeVar

import pytest
import torch
from packaging.version import Version
from torch import nn

T = TypeVar("T")
ALONE = types.SimpleNamespace(world_size=1, rank_in_group=0)


class GraphSupport(Enum):
    """``AttentionCGSupport``."""

    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


class AttentionBackend:
    """``vllm.v1.attention.backend``'s."""


class AttentionImpl(Generic[T]):
    """``vllm.v1.attention.backend``'s."""


class MetadataBuilder(Generic[T]):
    """``AttentionMetadataBuilder``."""

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: Any) -> None:
        self.vllm_config = vllm_config


class AttentionLayerBase:
    """``vllm.model_executor.layers.attention_layer_base``'s."""


class MambaBase(AttentionLayerBase):
    """``vllm.model_executor.layers.mamba.abstract``'s: it cuts pages of bytes into a layer's states."""

    def bind_kv_cache(self: Any, kv_cache: torch.Tensor) -> None:
        pages, states, begin = kv_cache.flatten(1), [], 0
        for shape, dtype in zip(self.get_state_shape(), self.get_state_dtype(), strict=True):
            end = begin + math.prod(shape) * dtype.itemsize
            states.append(pages[:, begin:end].view(dtype).view(-1, *shape))
            begin = end
        self.kv_cache = tuple(states)


class StateKinds(Enum):
    """``MambaAttentionBackendEnum``."""

    GDN_ATTN = "gdn"


def pages_of_states(block_table: torch.Tensor, seq_lens: torch.Tensor, spec: Any, mode: str) -> torch.Tensor:
    """``mamba_get_block_table_tensor``: the page of each request's last token, where pages go by tokens."""
    if mode != "align":
        return block_table
    return block_table.gather(1, ((seq_lens - 1) // spec.block_size).clamp(min=0).long()[:, None])


class CacheLayouts(Enum):
    """``KVCacheLayout``, since 0.29: the orders of layers, blocks, heads, tokens and content."""

    LBHNC = (0, 1, 2, 3, 4)
    LHBNC = (0, 2, 1, 3, 4)


@dataclass(frozen=True)
class PagedSpec:
    """``FullAttentionSpec``, since 0.29."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: Any
    num_head_slots: int | None = None
    state_content_bytes: int | None = None

    def view(self, num_blocks: int, layout: CacheLayouts) -> torch.Tensor:
        """The tensor ``[blocks, heads, tokens, content]`` that vLLM makes of it, zeros in the order of `layout`."""
        heads = self.num_kv_heads if self.num_head_slots is None else self.num_head_slots
        content = self.state_content_bytes or 2 * self.head_size * self.dtype.itemsize
        order = [place - 1 for place in layout.value if place]
        shape = (num_blocks, heads, self.block_size, content // self.dtype.itemsize)
        stored = torch.zeros([shape[place] for place in order], dtype=self.dtype)
        return stored.permute([order.index(place) for place in range(4)])


@dataclass(frozen=True)
class LatentSpec:
    """``MLAAttentionSpec``."""

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: Any
    cache_dtype_str: str


class Attention(nn.Module):
    """``vllm.model_executor.layers.attention``'s, with our kernels: vLLM gives a layer those of the chosen backend."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        cache_config: Any = None,
        logits_soft_cap: float | None = None,
        per_layer_sliding_window: int | None = None,
        prefix: str = "",
        **extra: Any,
    ) -> None:
        super().__init__()
        from atom_vllm.mixers.attention import AtomAttention

        window, cap = per_layer_sliding_window, logits_soft_cap
        self.impl = AtomAttention(
            num_heads, head_size, scale, num_kv_heads, sliding_window=window, logits_soft_cap=cap, **extra
        )
        self.layer_name, self.kv_cache = prefix, torch.tensor([])
        # vLLM's layers find the configuration by themselves.
        cache_config.layers[prefix] = self


class Interface:
    """What models of ``vllm.model_executor.models.interfaces`` say that they do."""


class MultiModalRegistry:
    """``vllm.multimodal``'s; users let prompts have pictures here."""

    @staticmethod
    def supports_multimodal_inputs(model_config: Any) -> bool:
        return True


@dataclass
class StubVllm:
    """What a test may look at and change.

    Attributes:
        own: what each thread has of its own: the `group` of a rank, the `context` of those that share one with it, if
            there are any, the ranks beside it in other `engines`, `every` rank of all engines, the `step` that its
            attention finds, and the `config` of the engine that is being made.
        registered: architecture -> "module:class" of everything that was put into vLLM's registry.
        base_name: the platform that vLLM would have taken.
        version: vLLM's.
    """

    base_name: str
    version: str
    registered: dict[str, str] = field(default_factory=dict)
    own: threading.local = field(default_factory=threading.local)


def _base_platform(name: str) -> type:
    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        if attn_selector_config.use_mla and name == "CpuPlatform":
            raise NotImplementedError("MLA is not supported on CPU.")
        return f"stock.{name}.{'Mla' if attn_selector_config.use_mla else 'Dense'}"

    return type(name, (), {"_enum": name, "get_attn_backend_cls": classmethod(get_attn_backend_cls)})


def _module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(members)
    return module


def _since_0_29(stub: StubVllm) -> dict[str, Any]:
    return {"KVCacheLayout": CacheLayouts} if Version(stub.version) >= Version("0.29") else {}


def _modules(stub: StubVllm, architectures: tuple[str, ...]) -> list[types.ModuleType]:
    class Registry:
        @staticmethod
        def register_model(architecture: str, where: str) -> None:
            stub.registered[architecture] = where

    kind, _, name = stub.base_name.rpartition(".")
    known = {architecture: ("known", architecture) for architecture in architectures}
    return [
        _module("vllm", ModelRegistry=Registry),
        _module("vllm.platforms", builtin_platform_plugins={"none": lambda: None, "here": lambda: stub.base_name}),
        _module(kind, **{name: _base_platform(name)}),
        _module("vllm.model_executor.models", registry=_module("registry", _VLLM_MODELS=known)),
        _module(
            "vllm.distributed",
            get_tp_group=lambda: stub.own.group,
            get_dcp_group=lambda: getattr(stub.own, "context", ALONE),
            get_dp_group=lambda: stub.own.engines,
            get_ep_group=lambda: stub.own.every,
        ),
        _module(
            "vllm.model_executor.models.interfaces",
            SupportsMRoPE=type("SupportsMRoPE", (Interface,), {}),
            SupportsMultiModal=type("SupportsMultiModal", (Interface,), {}),
        ),
        _module("vllm.multimodal", MULTIMODAL_REGISTRY=MultiModalRegistry),
        _module("vllm.config", get_current_vllm_config_or_none=lambda: getattr(stub.own, "config", None)),
        _module("vllm.compilation.decorators", support_torch_compile=lambda **_: lambda compiled: compiled),
        _module("vllm.compilation.breakable_cudagraph", is_breakable_cudagraph_enabled=lambda: False),
        _module("vllm.model_executor.layers.attention", Attention=Attention),
        _module("vllm.forward_context", get_forward_context=lambda: stub.own.step),
        _module("vllm.model_executor.layers.attention_layer_base", AttentionLayerBase=AttentionLayerBase),
        _module("vllm.model_executor.layers.mamba.abstract", MambaBase=MambaBase),
        _module("vllm.v1.attention.backends.registry", MambaAttentionBackendEnum=StateKinds),
        _module("vllm.v1.attention.backends.utils", mamba_get_block_table_tensor=pages_of_states),
        _module("vllm.v1.kv_cache_interface", MLAAttentionSpec=LatentSpec, **_since_0_29(stub)),
        _module("vllm.utils", torch_utils=_module("torch_utils", _encode_layer_name=lambda name: name)),
        _module(
            "vllm.v1.attention.backend",
            AttentionBackend=AttentionBackend,
            AttentionImpl=AttentionImpl,
            AttentionMetadataBuilder=MetadataBuilder,
            AttentionCGSupport=GraphSupport,
            MultipleOf=int,
        ),
    ]


@contextmanager
def stub_vllm(
    *,
    version: str = "0.27.1",
    base: str = "vllm.platforms.cpu.CpuPlatform",
    architectures: tuple[str, ...] = ("LlamaForCausalLM", "DeepseekV3ForCausalLM", "OptForCausalLM"),
) -> Iterator[StubVllm]:
    """vLLM of `version`, whose own platform is `base`, can be imported inside; `atom_vllm` starts afresh."""
    stub = StubVllm(base, version)
    installed = importlib.metadata.version

    def version_of(name: str) -> str:
        if name == "vllm":
            return version
        return installed(name)

    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in sys.modules if name.split(".")[0] in ("vllm", "atom_vllm")]:
            patch.delitem(sys.modules, name)
        for module in _modules(stub, architectures):
            for parent in _parents(module.__name__):
                if parent not in sys.modules:
                    patch.setitem(sys.modules, parent, types.ModuleType(parent))
            patch.setitem(sys.modules, module.__name__, module)
        patch.setattr(importlib.metadata, "version", version_of)
        yield stub
        for name in [name for name in sys.modules if name.split(".")[0] == "atom_vllm"]:
            patch.delitem(sys.modules, name)


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
