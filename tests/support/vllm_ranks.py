"""A model of ours as a rank of vLLM's has it, over groups of threads: see `stub_vllm`."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file

from thread_ranks import Group

BLOCK_SIZE, NUM_BLOCKS = 16, 2


class Coordinator:
    """A rank of vLLM's ``GroupCoordinator``, whose sums are new tensors."""

    def __init__(self, group: Group, rank: int) -> None:
        self.world_size, self.rank_in_group, self._ranks = group.size, rank, group.as_rank(rank)

    def all_reduce(self, input_: torch.Tensor) -> torch.Tensor:
        return self._ranks.all_reduce(input_.clone())

    def all_gather(self, input_: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return self._ranks.all_gather(input_, dim)

    def reduce_scatter(self, input_: torch.Tensor, dim: int) -> torch.Tensor:
        assert dim == 0
        return self._ranks.reduce_scatter(input_)


def config_of(folder: Path, size: int, context_size: int = 1, **parallel: Any) -> Any:
    """A ``VllmConfig`` for a rank of `size`, `context_size` of which share a context."""
    spread = {"data_parallel_size": 1, "enable_expert_parallel": False} | parallel
    config, layers = json.loads((folder / "config.json").read_text()), {}
    given = config.get("quantization_config")
    hf_config = SimpleNamespace(**config, to_dict=lambda: dict(config))
    method = None if given is None else given["quant_method"]
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model=str(folder), dtype=torch.float32, hf_config=hf_config, max_model_len=64, quantization=method,
            uses_mrope=False, is_moe=bool(config.get("num_experts") or config.get("n_routed_experts")),
        ),
        cache_config=SimpleNamespace(
            block_size=BLOCK_SIZE, cache_dtype="auto", num_gpu_blocks=NUM_BLOCKS, enable_prefix_caching=False,
            gpu_memory_utilization=0.5, layers=layers,
        ),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=64, max_num_seqs=4),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=size, decode_context_parallel_size=context_size, **spread
        ),
        compilation_config=SimpleNamespace(static_forward_context=layers, mode=0),
        device_config=SimpleNamespace(device=torch.device("cpu"), device_type="cpu"),
        load_config=SimpleNamespace(load_format="auto"),
        kv_transfer_config=None,
        additional_config=None,
    )  # fmt: skip


def model_in_vllm(
    folder: Path, size: int, context_size: int = 1, num_blocks: int = NUM_BLOCKS, **parallel: Any
) -> tuple[Any, Any]:
    """A rank's model, for the groups that its thread has, and its layers with a cache."""
    from atom_vllm.models.model_wrapper import our_class

    config = config_of(folder, size, context_size, **parallel)
    model = our_class(config.model_config.hf_config.architectures[0])(vllm_config=config)
    model.load_weights(load_file(folder / "model.safetensors").items())
    layers = config.compilation_config.static_forward_context
    for layer in layers.values():
        impl = layer.impl
        shape = (num_blocks, BLOCK_SIZE, impl.head_size)
        if not hasattr(impl, "problem"):
            shape = (num_blocks, impl.num_kv_heads, BLOCK_SIZE, 2 * impl.head_size)
        layer.kv_cache = torch.zeros(shape)
    return model, layers
