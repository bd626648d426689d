"""Loads a model, sizes the KV cache by the memory that is left, and puts the two together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from atom_core.config.sections import EngineConfig
from atom_core.worker.cache.pages import CachePages, plan_pages
from atom_core.worker.cache.size import CacheSize, size_cache
from atom_core.worker.cache.states import StateSlots
from atom_core.worker.cache.tensors import allocate_caches
from atom_core.worker.devices.protocol import WorkerDevice
from atom_core.worker.model.engine_model import EngineModel
from atom_core.worker.offload.loading import OffloadSize, make_mover, size_offload
from atom_core.worker.offload.mover import BlockMover
from atom_core.worker.ranks.protocol import WorkerRanks

LoadModel = Callable[[EngineConfig, WorkerRanks], EngineModel]
"""Gives the part of a configuration's model that one of the ranks has."""


@dataclass(frozen=True)
class LoadReport:
    """The facts that loading found out.

    Attributes:
        pages: how the model's layers share the cache.
        size: the size of the cache.
        weights_per_token: about how many each token is multiplied by; 0 where nothing asks for it.
        timings: seconds of each phase, by name.
        choices: a line for each value that was chosen for the user.
        offload: places for blocks that leave the cache, and for those that other engines fetch.
    """

    pages: CachePages
    size: CacheSize
    weights_per_token: int
    timings: dict[str, float]
    choices: tuple[str, ...]
    offload: OffloadSize


def load_and_measure(
    config: EngineConfig, load_model: LoadModel, ranks: WorkerRanks, *, device: WorkerDevice
) -> tuple[EngineModel, LoadReport]:
    """Load the weights, measure the memory, work out the size of the cache, which is the same on all ranks.

    Returns the model without a cache, which `allocate` gives it.

    Raises:
        ConfigError: the cache cannot hold a request.
    """
    times = [time.perf_counter()]
    model = load_model(config, ranks)
    times.append(time.perf_counter())
    pages = plan_pages(model.mixers_of_stages or model.all_mixers, config.model.max_model_len)
    if model.mixers_of_stages is not None:
        pages = pages.of_layers(model.all_mixers)
    free = device.free_memory(config, model, pages, ranks=ranks)
    times.append(time.perf_counter())
    offload = size_offload(config, pages)
    num_bytes = free.num_bytes
    if config.cache.offload is not None or config.cache.transfer is not None:
        in_memory = (offload.num_in_memory + offload.num_to_send) * pages.page_bytes
        num_bytes = max(num_bytes - device.memory_for_offload(in_memory), 0)
    if model.adapters is not None:
        num_bytes = max(num_bytes - model.adapters.num_bytes, 0)
    if config.images is not None:
        num_bytes = max(num_bytes - config.images.cache_bytes, 0)
    size = size_cache(config, pages, num_bytes, ranks.smallest)
    report = LoadReport(
        pages=pages,
        size=size,
        weights_per_token=free.weights_per_token,
        timings={
            name: after - before
            for name, before, after in zip(("load weights", "measure memory"), times[:-1], times[1:], strict=True)
        },
        choices=(*_mixed_without_a_kernel(model), *free.choices, *size.choices, *offload.choices),
        offload=offload,
    )
    return model, report


def allocate(
    model: EngineModel, loaded: LoadReport, config: EngineConfig, *, ranks: WorkerRanks, device: WorkerDevice
) -> tuple[EngineModel, StateSlots, BlockMover | None]:
    """The same model with a cache of zeros, the states of its layers that keep one a request, and the cache's mover.

    Raises:
        ConfigError: blocks that leave the cache cannot be kept in the folder for them.
    """
    pages, size = loaded.pages, loaded.size
    num_slots = size.num_slots + size.num_snapshots
    # Behind the blocks of requests lies the spare one, where a warm-up has its steps write.
    num_blocks = size.num_blocks + (config.compile.warmup != "none")
    caches = allocate_caches(model.all_mixers, pages, num_blocks, device, num_slots=num_slots)
    in_slots = [name for group in pages.groups if group.spec.in_slots for name in group.layers]
    states = StateSlots([tensor for name in in_slots for tensor in caches[name]])
    mover = make_mover(config, pages, caches, size=loaded.offload, device=device, ranks=ranks)
    return model.with_caches(caches, [group.layers for group in pages.groups]), states, mover


def _mixed_without_a_kernel(model: EngineModel) -> Iterator[str]:
    """A line for each kind of cache that only the reference reads here: it is right, and many times slower."""
    plans = [layer.plan for layer in model.all_mixers.values()]
    for name in dict.fromkeys(plan.problem.cache.name for plan in plans if not plan.has_kernel):
        yield (
            f"attention over a cache of {name} runs in plain torch, and slowly: no kernel here reads one; "
            "`python -m atom_kernels explain` says why"
        )
