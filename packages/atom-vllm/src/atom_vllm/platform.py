"""The platform that vLLM gets: its own for this device, but for the choice of the attention backend."""

from __future__ import annotations

import functools
import importlib
import logging
from typing import Any

from atom_vllm import compat, settings
from atom_vllm.mixers import cache_dtypes

logger = logging.getLogger("vllm.atom")

BACKEND = "atom_vllm.mixers.attention.AtomAttentionBackend"
# vLLM's own platform -> the name of ours over it.
NAMES = {
    "vllm.platforms.cpu.CpuPlatform": "AtomCpuPlatform",
    "vllm.platforms.cuda.CudaPlatform": "AtomCudaPlatform",
    "vllm.platforms.rocm.RocmPlatform": "AtomRocmPlatform",
}


@functools.cache
def make_platform(base_name: str) -> type:
    """A subclass of vLLM's platform `base_name` that offers our attention.

    It keeps the base's kind, so that vLLM's workers, communicators and operators take it for what it is: only
    `get_attn_backend_cls` is another.
    """
    module, _, name = base_name.rpartition(".")
    base: Any = getattr(importlib.import_module(module), name)

    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, num_heads: int | None = None
    ) -> str:
        reason = why_not_chosen(selected_backend, attn_selector_config)
        if reason is None:
            logger.info("Use atom attention backend")
            return BACKEND
        logger.info("atom-vllm: vLLM attends, because %s", reason)
        try:
            return base.get_attn_backend_cls.__func__(
                cls, selected_backend, attn_selector_config=attn_selector_config, num_heads=num_heads
            )
        except NotImplementedError as error:
            raise NotImplementedError(
                f"{error} That is vLLM's own word; ATOM's models bring an attention of their own here, and the log "
                "says above why this model is vLLM's"
            ) from error

    members = {
        "__module__": __name__,
        "__doc__": f"`{base_name}` with ATOM's attention.",
        "get_attn_backend_cls": classmethod(get_attn_backend_cls),
    }
    return type(NAMES[base_name], (base,), members)


def why_not_chosen(selected_backend: Any, config: Any) -> str | None:
    """The same where the user may have named a backend; "CUSTOM" is ours."""
    name = getattr(selected_backend, "name", selected_backend)
    return why_not_ours(config) if name in (None, "CUSTOM") else f"{name} was asked for"


def why_not_ours(config: Any) -> str | None:
    """Why vLLM's own attention must serve a layer; None where ours can.

    `config` is vLLM's ``AttentionSelectorConfig``, whose fields grow with its versions.
    """
    if settings.is_attention_disabled():
        return "ATOM_DISABLE_VLLM_PLUGIN_ATTENTION is set"
    reasons = {
        "use_mla": "latent attention in its own models is left to it",
        "use_sparse": "sparse attention is left to it",
        "use_mm_prefix": "prefixes seen from both sides are left to it",
        "use_per_head_quant_scales": "scales of single heads are left to it",
        "use_non_causal": "attention that is not causal is left to it",
        "use_dcp": "decode context parallelism is left to it",
        "use_pcp": "prefill context parallelism is left to it",
        "use_rswa": "reference windows are left to it",
        "use_batch_invariant": "batch-invariant mode is left to it",
    }
    for field, reason in reasons.items():
        if getattr(config, field, False):
            return reason
    if compat.shares_context():
        return reasons["use_dcp"]
    if getattr(config, "attn_type", "decoder") != "decoder":
        return f"attention of {config.attn_type} is left to it"
    dtype = str(config.dtype).removeprefix("torch.")
    return cache_dtypes.why_not_cached(str(config.kv_cache_dtype or "auto"), dtype, config.head_size)


def __getattr__(name: str) -> type:
    for base, ours in NAMES.items():
        if ours == name:
            return make_platform(base)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
