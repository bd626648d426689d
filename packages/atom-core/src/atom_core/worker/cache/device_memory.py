"""What a GPU's memory goes to: measured with the weights on it, before the KV cache takes what is left."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch

from atom_core.config.sections import EngineConfig
from atom_core.worker.cache.pages import CachePages
from atom_core.worker.cache.tensors import allocate_caches
from atom_core.worker.devices.protocol import WorkerDevice
from atom_core.worker.graphs.plan import GraphsToCapture, plan_graphs
from atom_core.worker.model.dummy_steps import encode_largest, largest_step, run_step
from atom_core.worker.model.early_compilation import compile_prompts
from atom_core.worker.model.engine_model import EngineModel
from atom_models.vision.tower import VisionTower

# What captured graphs of one shape take beside their shared memory: nodes, arguments, executables.
GRAPH_BYTES = 8 << 20


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of one device, as the engine may use them.

    Attributes:
        limit: that everything together may take.
        others: taken before: other processes, the driver's context.
        weights: the model's weights.
        activations: what the largest step takes beside the weights.
        graphs: captured graphs, with the logits that they write; an estimate until they are captured.
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
    """About how many weights each token is multiplied by; the device must hold nothing but weights."""
    return torch.cuda.memory_allocated() // getattr(torch, config.model.dtype).itemsize - model.num_idle_weights


def measure_memory(
    config: EngineConfig, model: EngineModel, pages: CachePages, weights_per_token: int, *, device: WorkerDevice
) -> DeviceMemory:
    """Run the largest step once on dummy tokens, over a cache of two blocks; that also compiles prompts' kernels."""
    free, total = torch.cuda.mem_get_info()
    reserved, weights = torch.cuda.memory_reserved(), torch.cuda.memory_allocated()
    # Not one: kernels would be compiled for a cache whose blocks have no distance.
    caches = allocate_caches(model.all_mixers, pages, 2, device, num_slots=2)
    paged = model.with_caches(caches, [group.layers for group in pages.groups])
    compile_prompts(config, paged)
    torch.cuda.reset_peak_memory_stats()
    seen = encode_largest(config, paged)
    of_tower = torch.cuda.max_memory_allocated() - weights
    run_step(config, paged, largest_step(config))
    del seen  # it lay beside the step
    torch.cuda.synchronize()
    activations = torch.cuda.max_memory_allocated() - weights
    torch.cuda.empty_cache()
    plan = plan_graphs(config, paged, weights_per_token)
    return DeviceMemory(
        limit=int(total * config.cache.memory_utilization),
        others=total - free - reserved,
        weights=weights,
        activations=activations,
        graphs=graph_bytes(plan, config.model.vocab_size, activations // config.scheduler.max_num_batched_tokens)
        + tower_graph_bytes(plan, paged.tower, of_tower, config.scheduler.max_num_image_tokens),
    )


def give_memory_back() -> None:
    """Return unused memory to the device; compiled models have to be collected as garbage first."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def graph_bytes(plan: GraphsToCapture, vocab_size: int, token_bytes: int) -> int:
    """What the graphs of `plan` will take, about.

    All share the memory of the largest, which is theirs alone: logits, twice, and `token_bytes` of activations a token.
    """
    shapes = plan.shapes.all
    num_logits = vocab_size * max((shape.num_samples for shape in shapes), default=0)
    num_graphs = len(shapes) + len(plan.piece_sizes)
    return num_graphs * GRAPH_BYTES + 2 * 4 * num_logits + plan.most_tokens * token_bytes


def tower_graph_bytes(
    plan: GraphsToCapture, tower: VisionTower | None, activations: int, max_num_image_tokens: int
) -> int:
    """What the graphs of a tower take, about: all have the memory of the largest.

    Args:
        activations: bytes of encoding `max_num_image_tokens` at once.
    """
    if tower is None or not plan.tower_rows:
        return 0
    of_row = activations // (max_num_image_tokens * tower.rows_of_unit)
    return len(plan.tower_rows) * GRAPH_BYTES + max(plan.tower_rows) * of_row


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f} GiB"
