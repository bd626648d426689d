"""What a GPU's memory goes to: measured with the weights on it, before the KV cache takes what is left."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.cache_pages import CachePages
from atom_core.worker.graph_plan import GraphPlan, plan_graphs
from atom_core.worker.kv_caches import allocate_caches
from atom_core.worker.model_loading import EngineModel
from atom_core.worker.paged_model import PagedModel
from atom_kernels.protocols import BatchGeometry

# What captured graphs of one shape take beside their shared memory: nodes, arguments, executables.
GRAPH_BYTES = 8 << 20


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device, as the engine may use them.

    Attributes:
        limit: that everything together may take.
        others: taken before: other processes, the driver's context.
        weights: of the model.
        activations: of the largest step, beside the weights.
        graphs: of captured graphs, with the logits that they write; an estimate until they are captured.
    """

    limit: int
    others: int
    weights: int
    activations: int
    graphs: int

    @property
    def for_cache(self) -> int:
        """What is left."""
        return max(self.limit - self.others - self.weights - self.activations - self.graphs, 0)

    def describe(self) -> str:
        """One line for people."""
        parts = {name: getattr(self, name) for name in ("weights", "activations", "graphs", "others")}
        taken = ", ".join(f"{name} {_gib(size)}" for name, size in parts.items())
        return f"memory = {_gib(self.limit)}: {taken}, {_gib(self.for_cache)} left for the KV cache"


def count_weights_per_token(config: EngineConfig, model: EngineModel) -> int:
    """How many weights each token is multiplied by, about, told of a device that holds nothing but weights."""
    return torch.cuda.memory_allocated() // getattr(torch, config.model.dtype).itemsize - model.num_idle_weights


def measure_memory(config: EngineConfig, model: EngineModel, pages: CachePages, weights_per_token: int) -> DeviceMemory:
    """Run the largest step once on dummy tokens, over a cache of one block; that also compiles what requests need."""
    free, total = torch.cuda.mem_get_info()
    reserved, weights = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    caches = allocate_caches(model.attention_layers, pages, 1, config.device)
    paged = PagedModel(model, caches, [group.layers for group in pages.groups])
    _run_largest_step(config, paged)
    torch.cuda.synchronize()
    activations = torch.cuda.max_memory_allocated() - weights
    torch.cuda.empty_cache()
    plan = plan_graphs(config, paged, weights_per_token)
    return DeviceMemory(
        limit=int(total * config.cache.memory_utilization),
        others=total - free - reserved,
        weights=weights,
        activations=activations,
        graphs=graph_bytes(plan, config.model.vocab_size, activations // config.scheduler.max_num_batched_tokens),
    )


def give_memory_back() -> None:
    """Return to the device what nobody holds any more; compiled models are garbage that has to be collected first."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()


def graph_bytes(plan: GraphPlan, vocab_size: int, token_bytes: int) -> int:
    """What the graphs of `plan` will take, about.

    All share the memory of the largest, which is theirs alone: logits, twice, and `token_bytes` of activations a token.
    """
    shapes = plan.shapes.all if plan.shapes else []
    num_logits = vocab_size * max((shape.num_reqs for shape in shapes), default=0)
    num_graphs = len(shapes) + len(plan.piece_sizes)
    return num_graphs * GRAPH_BYTES + 2 * 4 * num_logits + plan.most_tokens * token_bytes


def _run_largest_step(config: EngineConfig, model: PagedModel) -> None:
    """As many tokens as a step may have, in prompts as long as they may be."""
    longest = max(config.model.max_model_len, 2)
    num_reqs, last = divmod(max(config.scheduler.max_num_batched_tokens, 2), longest)
    # A request of one token would be a decode, which comes first.
    lengths = [longest] * num_reqs + [last] * (last > 1)
    geometry = dummy_geometry(lengths, config.cache.block_size, config.device)
    positions = torch.cat([torch.arange(length, device=config.device) for length in lengths])
    hidden_TD = model.forward(torch.zeros_like(positions), positions, (geometry,) * model.num_groups)
    model.compute_logits(hidden_TD[: config.scheduler.max_num_seqs])


def dummy_geometry(lengths: Sequence[int], block_size: int, device: str) -> BatchGeometry:
    """Prompts of `lengths` that write nothing to the cache, and read its first block."""
    ends = np.cumsum([0, *lengths])

    def numbers(values: Any) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return BatchGeometry(
        query_start_loc=numbers(ends),
        seq_lens=numbers(lengths),
        block_table=torch.zeros(len(lengths), -(-max(lengths) // block_size), dtype=torch.int32, device=device),
        slot_mapping=torch.full((int(ends[-1]),), -1, dtype=torch.int64, device=device),
        num_reqs=len(lengths),
        num_tokens=int(ends[-1]),
        num_decodes=0,
        max_query_len=max(lengths),
        max_seq_len=max(lengths),
    )


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
