"""How vLLM spreads a model over ranks, and what of it is not ours."""

from __future__ import annotations

from typing import Any

# What vLLM calls the exchange of rows by gathering all of them, which is ours.
_GATHERS = ("allgather_reducescatter", "naive")


def exchanges_rows(vllm_config: Any) -> bool:
    """Whether engines with requests of their own run the same mixtures, step by step.

    Models without experts are as many engines as there are ranks of them, which vLLM runs each by itself.
    """
    return vllm_config.parallel_config.data_parallel_size > 1 and vllm_config.model_config.is_moe


def spreads_experts(vllm_config: Any) -> bool:
    """Whether each rank holds whole experts.

    vLLM cuts those of several engines unless it is told to spread them; ours are spread, in the same memory.
    """
    return exchanges_rows(vllm_config) or (
        vllm_config.parallel_config.enable_expert_parallel and vllm_config.model_config.is_moe
    )


def why_ranks_are_left(vllm_config: Any) -> str | None:
    """Why vLLM's own model must be spread over these ranks; None where ours can be.

    Versions of vLLM lack some of the names.
    """
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if parallel.pipeline_parallel_size > 1:
        return "pipeline parallelism is asked for"
    if (context := _why_context_is_left(parallel, has_latents=bool(model.use_mla))) is not None:
        return context
    return _why_experts_are_left(vllm_config) if spreads_experts(vllm_config) else None


def _why_context_is_left(parallel: Any, *, has_latents: bool) -> str | None:
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


def _why_experts_are_left(vllm_config: Any) -> str | None:
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    if getattr(parallel, "enable_eplb", False):
        return "enable_eplb is asked for, and only experts of vLLM's own layers move"
    if (order := getattr(parallel, "expert_placement_strategy", "linear")) != "linear":
        return f"an expert_placement_strategy of {order} is asked for, and ranks of ours hold runs of experts"
    if exchanges_rows(vllm_config):
        if getattr(parallel, "use_ubatching", False):
            return "steps in several parts (enable_dbo, ubatch_size) are asked for"
        if (way := getattr(parallel, "all2all_backend", _GATHERS[0])) not in _GATHERS:
            return f"an all2all_backend of {way} is asked for, and engines of ours gather rows"
    count, ranks = model.get_num_experts(), parallel.data_parallel_size * parallel.tensor_parallel_size
    if count < ranks:
        return f"it has {count} experts, and each of {ranks} ranks would hold one whole"
    return None
