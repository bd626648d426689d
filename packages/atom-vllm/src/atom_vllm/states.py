"""Which of vLLM's ways to keep states of requests our models have, and what ours needs of the pages that it plans."""

from __future__ import annotations

from typing import Any

from atom_vllm import compat, settings

# A state is kept in float32, whatever a model computes in.
STATE_DTYPE = "float32"


def why_states_are_left(vllm_config: Any) -> str | None:
    """Why vLLM's own layers must keep the states of a model that has some; None where ours can."""
    cache, model = vllm_config.cache_config, vllm_config.model_config
    if model.use_mla:
        return f"{model.hf_config.architectures[0]} caches latents beside its states, which was not tried with ours"
    dtype = str(getattr(model, "dtype", "")).rpartition(".")[2]
    speculative = vllm_config.speculative_config
    mode = getattr(cache, "mamba_cache_mode", "none")
    conv_dtype, state_dtype = (
        str(getattr(cache, name, "auto")) for name in ("mamba_cache_dtype", "mamba_ssm_cache_dtype")
    )
    reasons = {
        "states are ours only with our kernels, and ATOM_DISABLE_VLLM_PLUGIN_ATTENTION is set": (
            settings.is_attention_disabled()
        ),
        f"speculative decoding by {getattr(speculative, 'method', None)} is asked for, and ours keeps no states behind "
        "drafts there": speculative is not None,
        "its caches are to be transferred, and states of ours are not": (
            getattr(vllm_config, "kv_transfer_config", None) is not None
        ),
        f"a mamba_cache_mode of {mode} is asked for, and ours has none and align": mode not in ("none", "align"),
        f"a mamba_cache_dtype of {conv_dtype} is asked for, and ours is that of the model": (
            conv_dtype not in ("auto", dtype)
        ),
        f"a mamba_ssm_cache_dtype of {state_dtype} is asked for, and states of ours are in {STATE_DTYPE}": (
            state_dtype not in ("auto", STATE_DTYPE)
        ),
        "graphs are to break at attention": compat.breaks_graphs_at_attention(),
        "this vLLM has no layers that take states from pages": not compat.has_pages_of_states(),
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
