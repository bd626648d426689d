"""Features of vLLM that our models do not have: then vLLM's own class serves, and a line says why."""

from __future__ import annotations

from typing import Any

from atom_vllm import settings
from atom_vllm.mixers.cache_dtypes import DENSE_CACHES, FLOAT8_CACHES
from atom_vllm.pictures import why_pictures_are_left
from atom_vllm.speculation import why_not_a_target
from atom_vllm.states import why_states_are_left
from atom_vllm.stored_weights import why_quantization_is_left


def why_not_ours(vllm_config: Any) -> str | None:
    """Why vLLM's own model must serve this configuration; None where ours can."""
    from atom_models.architectures import registry

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    cache_dtype = str(vllm_config.cache_config.cache_dtype)
    reasons = {
        "LoRA adapters are asked for": vllm_config.lora_config is not None,
        "pipeline parallelism is asked for": parallel.pipeline_parallel_size > 1,
        "expert parallelism is asked for": parallel.enable_expert_parallel,
        "data parallelism is asked for": parallel.data_parallel_size > 1,
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
    if (context := _why_context_is_left(parallel, has_latents=bool(model.use_mla))) is not None:
        return context
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


def _why_context_is_left(parallel: Any, *, has_latents: bool) -> str | None:
    """Why vLLM's own model must spread a sequence over ranks; older versions lack some of the names."""
    if getattr(parallel, "prefill_context_parallel_size", 1) > 1:
        return "prefill context parallelism is asked for"
    if getattr(parallel, "decode_context_parallel_size", 1) == 1:
        return None
    if not has_latents:
        return "decode context parallelism is asked for, which is ours for latent attention alone"
    for name in ("cp_kv_cache_interleave_size", "dcp_kv_cache_interleave_size"):
        if (interleave := getattr(parallel, name, 1)) != 1:
            return f"a {name} of {interleave} is asked for, and ranks of ours keep one token after the other"
    if (way := getattr(parallel, "dcp_comm_backend", "ag_rs")) != "ag_rs":
        return f"a dcp_comm_backend of {way} is asked for, and ranks of ours gather and sum"
    return None
