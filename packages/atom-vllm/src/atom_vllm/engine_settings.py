"""From vLLM's configuration to our names: what our models are built with, and what the doctor shows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atom_vllm import compat


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """vLLM's settings under the names that they have in `atom_core`'s engine; graphs and compilation stay vLLM's.

    Attributes:
        enforce_eager: always true: ATOM captures nothing inside of vLLM.
        level: vLLM's compilation mode, 0 to 3.
    """

    model: str
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    gpu_memory_utilization: float
    tensor_parallel_size: int
    data_parallel_size: int
    decode_context_parallel_size: int
    block_size: int
    num_kv_blocks: int | None
    kv_cache_dtype: str
    enable_prefix_caching: bool
    enable_expert_parallel: bool
    level: int
    enforce_eager: bool


def translate(vllm_config: Any) -> EngineSettings:
    """The settings of a ``VllmConfig``."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    scheduler, parallel = vllm_config.scheduler_config, vllm_config.parallel_config
    return EngineSettings(
        model=model.model,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        max_num_seqs=scheduler.max_num_seqs,
        max_model_len=model.max_model_len or scheduler.max_model_len,
        gpu_memory_utilization=cache.gpu_memory_utilization,
        tensor_parallel_size=parallel.tensor_parallel_size,
        data_parallel_size=parallel.data_parallel_size,
        decode_context_parallel_size=parallel.decode_context_parallel_size,
        block_size=cache.block_size,
        num_kv_blocks=cache.num_gpu_blocks,
        kv_cache_dtype=str(cache.cache_dtype),
        enable_prefix_caching=bool(cache.enable_prefix_caching),
        enable_expert_parallel=parallel.enable_expert_parallel,
        level=int(vllm_config.compilation_config.mode or 0),
        enforce_eager=True,
    )


def checkpoint_of(vllm_config: Any) -> Any:
    """The model as `atom_models` describes one, from the config that vLLM has read already."""
    from atom_models.checkpoint import Checkpoint, normalize_config

    hf_config = vllm_config.model_config.hf_config
    config = hf_config.to_dict()
    if (quantization := compat.published_quantization(hf_config)) is not None:
        config["quantization_config"] = quantization
    return Checkpoint(Path(vllm_config.model_config.model), "safetensors", normalize_config(config))
