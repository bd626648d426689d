"""How many blocks the KV cache gets, out of the memory there is. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from atom_core.config.options import ConfigError
from atom_core.config.sections import EngineConfig
from atom_core.kv_cache import snapshot_places
from atom_core.worker.cache.pages import CachePages
from atom_kernels.protocols import Slots, blocks_of_request, longest_request

# A CPU's memory belongs to other programs too: the engine takes no more than this unless asked to.
CPU_CACHE_CAP = 2 << 30
# States behind cached prefixes take this part of the memory at most, those of requests twice as much.
SNAPSHOT_PART = 4


@dataclass(frozen=True)
class CacheSize:
    """The cache's size, the longest request that it lets in, and the slots of states: of requests, and of prefixes.

    `choices` says what was chosen, a line each."""

    num_blocks: int
    max_model_len: int
    choices: tuple[str, ...] = ()
    num_slots: int = 0
    num_snapshots: int = 0


def size_cache(config: EngineConfig, pages: CachePages, memory: int) -> CacheSize:
    """Work out the number of blocks, from which all groups of layers draw.

    A number of blocks that was asked for means blocks over all layers, and becomes as many pages as take the same
    memory.

    Args:
        memory: bytes of this rank that the cache may take before `memory_utilization` (a CPU) or after it (a GPU).

    Raises:
        ConfigError: the cache would hold less than one request of `max_model_len` tokens, and that was given, or
            memory is strict; or more than the machine has was asked for.
    """
    cache, model, groups = config.cache, config.model, pages.specs
    max_model_len, max_num_seqs = model.max_model_len, config.scheduler.max_num_seqs
    step_tokens = config.scheduler.max_num_batched_tokens
    # A model without attention layers has pages of no bytes.
    block_bytes = max(pages.page_bytes, 1)
    all_layers_bytes = pages.token_bytes * cache.block_size or block_bytes
    choices: list[str] = []
    on_cpu, cap = config.device == "cpu", CPU_CACHE_CAP // config.parallel.tensor_parallel_size
    blocks_of_one = blocks_of_request(groups, max_model_len, cache.block_size, step_tokens)
    if cache.num_blocks is not None:
        num_slots = _num_slots(pages, 2 * memory, max_num_seqs)
        num_blocks = cache.num_blocks * all_layers_bytes // block_bytes
        left = memory - num_slots * pages.slot_bytes - num_blocks * block_bytes
        num_snapshots = _num_snapshots(config, pages, min(left, cap if on_cpu else memory))
    elif cache.memory_bytes is not None:
        num_slots = _num_slots(pages, cache.memory_bytes, max_num_seqs)
        num_snapshots = _num_snapshots(config, pages, cache.memory_bytes)
        num_blocks = (cache.memory_bytes - (num_slots + num_snapshots) * pages.slot_bytes) // block_bytes
    else:
        budget = min(int(memory * cache.memory_utilization), cap) if on_cpu else memory
        num_slots = _num_slots(pages, budget, max_num_seqs)
        num_snapshots = _num_snapshots(config, pages, budget)
        budget -= (num_slots + num_snapshots) * pages.slot_bytes
        num_blocks = min(budget // block_bytes, max_num_seqs * blocks_of_one)
        size = f"{num_blocks * block_bytes / (1 << 30):.2f} GiB, {_held(num_blocks, len(groups), cache.block_size)}"
        why = f"what {max_num_seqs} requests can need, within {cap / (1 << 30):g} GiB" if on_cpu else "the memory left"
        choices.append(f"num_kv_blocks = {num_blocks} ({size}): {why}")
    if on_cpu:
        _check_fits(config, num_blocks * block_bytes + (num_slots + num_snapshots) * pages.slot_bytes, memory)
    capacity = longest_request(
        groups, num_blocks, cache.block_size, step_tokens=step_tokens, limit=max(max_model_len, 2)
    )
    if capacity < 2 or (capacity < max_model_len and (model.max_model_len_given or cache.strict_memory)):
        raise ConfigError(
            f"the KV cache is too small for one request: {num_blocks} blocks of {cache.block_size} tokens "
            f"hold {capacity}, max_model_len is {max_model_len} "
            f"and takes {blocks_of_one * block_bytes / (1 << 20):.1f} MiB: "
            "give more kv_cache_memory or num_kv_blocks, or a smaller max_model_len"
        )
    if capacity < max_model_len:
        choices.append(
            f"max_model_len = {capacity}: the most that the KV cache can hold (the model takes {max_model_len})"
        )
    if pages.slot_bytes:
        size = f"{num_slots * pages.slot_bytes / (1 << 30):.2f} GiB"
        of_whom = "states of as many requests"
        if pages.slots_each > 1:
            of_whom = f"states of {num_slots // pages.slots_each} requests, one and one for each draft"
        choices.append(f"num_slots = {num_slots} ({size}): {of_whom}, within half of the memory")
    if pages.slot_bytes and cache.enable_prefix_caching:
        size = f"{num_snapshots * pages.slot_bytes / (1 << 30):.2f} GiB"
        found = "states behind cached prefixes" if num_snapshots else "no prefix is found"
        choices.append(f"num_snapshots = {num_snapshots} ({size}): {found}, within a quarter of the memory")
    return CacheSize(num_blocks, min(max_model_len, capacity), tuple(choices), num_slots, num_snapshots)


def _check_fits(config: EngineConfig, num_bytes: int, memory: int) -> None:
    """A CPU gives out pages that it does not have, and ends the process when they are written; a GPU refuses itself."""
    if num_bytes <= memory:
        return
    name = "kv_cache_memory" if config.cache.num_blocks is None else "num_kv_blocks"
    raise ConfigError(
        f"{name} asks for {num_bytes / (1 << 30):.1f} GiB of KV cache, and {memory / (1 << 30):.1f} GiB of memory are "
        "left for it beside the weights: give less, or leave it unset"
    )


def _num_snapshots(config: EngineConfig, pages: CachePages, memory: int) -> int:
    """Slots for the states behind `max_num_seqs` of the longest prompts, or as many as a quarter of `memory` holds."""
    if not pages.slot_bytes or not config.cache.enable_prefix_caching:
        return 0
    of_one = len(snapshot_places(config.model.max_model_len, Slots.hand_over)) + 1
    return min(config.scheduler.max_num_seqs * of_one, max(memory, 0) // SNAPSHOT_PART // pages.slot_bytes)


def _num_slots(pages: CachePages, memory: int, max_num_seqs: int) -> int:
    """Slots for `max_num_seqs` requests, or for as many as have their states in half of `memory`."""
    if not pages.slot_bytes:
        return 0
    bytes_of_one = pages.slots_each * pages.slot_bytes
    num_requests = min(max_num_seqs, memory // 2 // bytes_of_one)
    if num_requests < 1:
        or_fewer = " or propose fewer drafts" if pages.slots_each > 1 else ""
        raise ConfigError(
            f"the KV cache is too small: the states of one request take {bytes_of_one / (1 << 20):.1f} MiB, and "
            f"may take half of {memory / (1 << 20):.1f} MiB: give more memory{or_fewer}"
        )
    return num_requests * pages.slots_each


def _held(num_blocks: int, num_groups: int, block_size: int) -> str:
    tokens = f"{num_blocks * block_size // num_groups} tokens"
    return tokens if num_groups == 1 else f"{tokens} in {num_groups} groups of layers, more behind windows"
