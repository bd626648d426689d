"""Runs in the environment of vLLM: prints as JSON where that vLLM differs from what `atom_vllm` takes it for.

Each key is a sentence that should hold; its value is empty where it does, and says what was found where it does not.
"""

from __future__ import annotations

import inspect
import json
from typing import Any


def missing(ours: Any, theirs: Any) -> list[str]:
    """Parameters that `theirs` may be called with and `ours` would not take."""
    own = inspect.signature(ours).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in own.values()):
        return []
    return [name for name in inspect.signature(theirs).parameters if name not in (*own, "self", "cls")]


def findings() -> dict[str, Any]:
    """Every sentence with what contradicts it."""
    from vllm.model_executor.models import ModelRegistry
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins
    from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionMetadataBuilder

    from atom_vllm import compat, platform
    from atom_vllm.mixers import attention, latent_attention, metadata
    from atom_vllm.models.architectures import overridden, wrapper_name

    ours, base = type(current_platform).__mro__[:2]
    classes = (attention.AtomAttentionBackend, attention.AtomAttention, metadata.AtomMetadataBuilder)
    classes += (latent_attention.AtomLatentBackend, latent_attention.LatentKernels, latent_attention.LatentLayer)
    load_general_plugins()
    registered = ModelRegistry.models
    has_scales = "calculate_kv_scales" in inspect.getsource(
        __import__("vllm.model_executor.layers.attention.attention", fromlist=["Attention"]).Attention
    )
    version = compat.vllm_version()
    needed = {name: version < until for name, until in compat.SHIMS.items()}
    present = {
        name: has_scales if name.endswith("scales") else hasattr(AttentionBackend, "get_kv_cache_shape")
        for name in compat.SHIMS
    }
    return {
        "the platform is ours over vLLM's": [] if ours.__module__ == platform.__name__ else [str(ours)],
        "its kind is that of vLLM's": [] if ours._enum is base._enum else [str(ours._enum)],
        "nothing abstract is left": [
            f"{cls.__name__}: {sorted(cls.__abstractmethods__)}"
            for cls in classes
            if getattr(cls, "__abstractmethods__", None)
        ],
        "attention takes every argument": missing(attention.AtomAttention.forward, AttentionImpl.forward),
        "layers are made with every argument": missing(attention.AtomAttention.__init__, AttentionImpl.__init__),
        "metadata is built with every argument": missing(
            metadata.AtomMetadataBuilder.build, AttentionMetadataBuilder.build
        ),
        "a backend is chosen with every argument": missing(
            ours.get_attn_backend_cls.__func__, base.get_attn_backend_cls.__func__
        ),
        "every architecture of ours is registered": [
            name for name in overridden() if wrapper_name(name) not in str(registered.get(name))
        ],
        "layers of latents may share a context": [
            name
            for name in ("can_return_lse_for_decode",)
            if not (hasattr(AttentionImpl, name) and getattr(latent_attention.LatentKernels, name))
        ],
        "each shim is needed by just the versions that it names": [
            name for name in needed if needed[name] is not present[name]
        ],
    }


if __name__ == "__main__":
    print("\n" + json.dumps(findings()))
