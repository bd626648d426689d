"""Features of vLLM that our models do not have: then vLLM's own class serves, and a line says why."""

from __future__ import annotations

from typing import Any

from atom_vllm import settings
from atom_vllm.mixers.cache_dtypes import DENSE_CACHES, FLOAT8_CACHES
from atom_vllm.parallel import why_ranks_are_left
from atom_vllm.pictures import why_pictures_are_left
from atom_vllm.speculation import why_not_a_target
from atom_vllm.states import why_states_are_left
from atom_vllm.stored_weights import why_quantization_is_left


def why_not_ours(vllm_config: Any) -> str | None:
    """Why vLLM's own model must serve this configuration; None where ours can."""
    from atom_models.architectures import registry

    model = vllm_config.model_config
    cache_dtype = str(vllm_config.cache_config.cache_dtype)
    reasons = {
        "LoRA adapters are asked for": vllm_config.lora_config is not None,
        "pooling is asked for": model.runner_type == "pooling" or model.convert_type != "none",
        f"a cache of {cache_dtype} is asked for": cache_dtype not in DENSE_CACHES + FLOAT8_CACHES,
        "prompt embeddings are asked for": bool(getattr(model, "enable_prompt_embeds", False)),
        "weights are put to sleep": bool(getattr(model, "enable_sleep_mode", False)),
        f"latents in {cache_dtype} are vLLM's own": bool(model.use_mla) and cache_dtype in FLOAT8_CACHES,
        "latent attention is ours only with our kernels, and ATOM_DISABLE_VLLM_PLUGIN_ATTENTION is set": bool(
            model.use_mla
        )
        and settings.is_attention_disabled(),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    if (speculation := why_not_a_target(vllm_config)) is not None:
        return speculation
    if (ranks := why_ranks_are_left(vllm_config)) is not None:
        return ranks
    architecture = model.hf_config.architectures[0]
    if registry.keeps_states(architecture) and (left := why_states_are_left(vllm_config)) is not None:
        return left
    if registry.has_sparse_attention(architecture):
        return f"{architecture} has sparse attention, whose index keys only vLLM's own layers hold in its cache"
    if (pictures := why_pictures_are_left(model)) is not None:
        return pictures
    try:
        registry.check_architecture(architecture)
    except registry.UnsupportedArchitectureError as error:
        return str(error)
    return why_quantization_is_left(vllm_config)
