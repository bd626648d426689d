"""What a request may ask for at most, judged before it enters."""

from __future__ import annotations

from atom_core.kv_cache import KVCacheConfig
from atom_core.messages import EngineRequest
from atom_core.scheduler.config import SchedulerConfig
from atom_kernels.protocols import blocks_of_request


def max_output_tokens(request: EngineRequest, config: SchedulerConfig) -> int:
    """Tokens that `request` may generate: 0 for an embedding, up to the context where it says nothing."""
    if request.kind == "embed":
        return 0
    if request.sampling_params.max_tokens is None:
        return max(config.max_model_len - len(request.token_ids), 1)
    return request.sampling_params.max_tokens


def refusal(request: EngineRequest, config: SchedulerConfig, cache: KVCacheConfig) -> str | None:
    """Why `request` could never run, for people; None if it can."""
    num_prompt_tokens = len(request.token_ids)
    max_tokens = max_output_tokens(request, config)
    if num_prompt_tokens == 0:
        return "the prompt is empty; give at least one token"
    if max_tokens < 0:
        return f"max_tokens is {max_tokens}; it must not be negative"
    if num_prompt_tokens + max_tokens > config.max_model_len:
        return (
            f"the prompt has {num_prompt_tokens} tokens and up to {max_tokens} are to be generated; together they must "
            f"not exceed max_model_len = {config.max_model_len}: shorten the prompt or lower max_tokens"
        )
    num_blocks = blocks_of_request(
        cache.groups, num_prompt_tokens + max(max_tokens, 1) - 1, cache.block_size, config.max_num_batched_tokens
    )
    if num_blocks > cache.num_blocks:
        return (
            f"a prompt of {num_prompt_tokens} tokens with up to {max_tokens} to generate takes {num_blocks} blocks of "
            f"the KV cache, which has {cache.num_blocks}: lower max_tokens, or give the cache more memory"
        )
    return None
