"""What of vLLM's features our models do not have: then vLLM's own class serves, and a line says why."""

from __future__ import annotations

from typing import Any


def why_not_ours(vllm_config: Any) -> str | None:
    """Why vLLM's own model must serve this configuration; None where ours can."""
    from atom_models.architectures.registry import UnsupportedArchitectureError, check_architecture

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    reasons = {
        "LoRA adapters are asked for": vllm_config.lora_config is not None,
        "pipeline parallelism is asked for": parallel.pipeline_parallel_size > 1,
        "expert parallelism is asked for": parallel.enable_expert_parallel,
        "data parallelism is asked for": parallel.data_parallel_size > 1,
        "speculative decoding is asked for": vllm_config.speculative_config is not None,
        "pooling is asked for": model.runner_type == "pooling" or model.convert_type != "none",
        "inputs other than text are asked for": bool(model.is_multimodal_model),
        f"the quantization {model.quantization} is asked for": model.quantization is not None,
        f"a cache of {vllm_config.cache_config.cache_dtype} is asked for": str(vllm_config.cache_config.cache_dtype)
        not in ("auto", "bfloat16", "float16", "float32"),
        "prompt embeddings are asked for": bool(getattr(model, "enable_prompt_embeds", False)),
        "weights are put to sleep": bool(getattr(model, "enable_sleep_mode", False)),
        "latent attention is vLLM's own": bool(model.use_mla),
    }
    for reason, holds in reasons.items():
        if holds:
            return reason
    try:
        check_architecture(model.hf_config.architectures[0])
    except UnsupportedArchitectureError as error:
        return str(error)
    return None
