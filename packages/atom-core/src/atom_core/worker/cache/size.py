"""How many blocks the KV cache gets, out of the memory there is. Torch-free."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from atom_core.config.devices import traits_of
from atom_core.config.options import ConfigError
from atom_core.config.sections import EngineConfig
from atom_core.kv_cache import snapshot_places
from atom_core.worker.cache.pages import CachePages
from atom_kernels.protocols import Slots, blocks_of_request, longest_request


@dataclass(frozen=True)
class CacheSize:
    """The cache's size, the longest request that it lets in, and the slots of states: of requests, and of prefixes.

    `choices` says what was chosen, a line each."""

    num_blocks: int
    max_model_len: int
    choices: tuple[str, ...] = ()
    num_slots: int = 0
    num_snapshots: int = 0

    @property
    def spare_block(self) -> int:
        """The block behind those that requests get, where there is a warm-up: its steps write there."""
        return self.num_blocks

    def num_bytes(self, pages: CachePages) -> int:
        """Bytes of its blocks and slots."""
        return self.num_blocks * _block_bytes(pages) + (self.num_slots + self.num_snapshots) * pages.slot_bytes


def _alone(number: int) -> int:
    return number


def size_cache(
    config: EngineConfig, pages: CachePages, memory: int, smallest: Callable[[int], int] = _alone
) -> CacheSize:
    """Work out the number of blocks, from which all groups of layers draw; it is the same on all ranks.

    Args:
        memory: bytes of this rank that the cache may take before `memory_utilization` (a CPU) or after it (a GPU).
        smallest: the smallest of the numbers that the ranks give (see `WorkerRanks`).

    Raises:
        ConfigError: the cache would hold less than one request of `max_model_len` tokens, and that was given, or
            memory is strict; or more than the machine has was asked for.
    """
    size = _agreed(_size_before_limits(config, pages, memory), pages, smallest)
    if traits_of(config.device).overcommits:
        _check_fits(config, size.num_bytes(pages), memory)
    capacity = _capacity(config, pages, size.num_blocks)
    choices = [_choice_of_blocks(config, pages, size)] if _is_by_memory(config) else []
    if capacity < size.max_model_len:
        choices.append(
            f"max_model_len = {capacity}: the most that the KV cache can hold (the model takes {size.max_model_len})"
        )
    choices += _choices_of_states(config, pages, size)
    return replace(size, max_model_len=min(size.max_model_len, capacity), choices=tuple(choices))


def _agreed(size: CacheSize, pages: CachePages, smallest: Callable[[int], int]) -> CacheSize:
    """What every rank can hold. One without states could hold any number of them."""
    slots = (size.num_slots, size.num_snapshots) if pages.slot_bytes else (sys.maxsize,) * 2
    num_blocks, num_slots, num_snapshots = map(smallest, (size.num_blocks, *slots))
    if not pages.slots_each:
        num_slots = num_snapshots = 0
    return replace(size, num_blocks=num_blocks, num_slots=num_slots, num_snapshots=num_snapshots)


def _block_bytes(pages: CachePages) -> int:
    """A model without attention layers has pages of no bytes."""
    return max(pages.page_bytes, 1)


def _size_before_limits(config: EngineConfig, pages: CachePages, memory: int) -> CacheSize:
    """As many blocks and slots as were asked for, or as the memory holds; any request fits, whatever its length."""
    cache, max_num_seqs, block_bytes = config.cache, config.scheduler.max_num_seqs, _block_bytes(pages)
    longest, cap = config.model.max_model_len, _cap(config)
    if cache.num_blocks is not None:
        # Blocks over all layers become as many pages as take the same memory.
        num_blocks = cache.num_blocks * (pages.token_bytes * cache.block_size or block_bytes) // block_bytes
        num_slots = _num_slots(pages, 2 * memory, max_num_seqs)
        left = memory - num_slots * pages.slot_bytes - num_blocks * block_bytes
        num_snapshots = _num_snapshots(config, pages, left if cap is None else min(left, cap))
        return CacheSize(num_blocks, longest, (), num_slots, num_snapshots)
    budget = cache.memory_bytes
    if budget is None:
        budget = memory if cap is None else min(int(memory * cache.memory_utilization), cap)
    num_slots, num_snapshots = _num_slots(pages, budget, max_num_seqs), _num_snapshots(config, pages, budget)
    num_blocks = (budget - (num_slots + num_snapshots) * pages.slot_bytes) // block_bytes
    if cache.memory_bytes is not None:
        return CacheSize(num_blocks, longest, (), num_slots, num_snapshots)
    num_blocks = min(num_blocks, max_num_seqs * _blocks_of_one(config, pages))
    return CacheSize(num_blocks, longest, (), num_slots, num_snapshots)


def _is_by_memory(config: EngineConfig) -> bool:
    """Whether nobody said how large the cache is to be."""
    return config.cache.num_blocks is None and config.cache.memory_bytes is None


def _cap(config: EngineConfig) -> int | None:
    """The bytes that a rank's cache takes at most unless more is asked for; None is all that is left."""
    cap = traits_of(config.device).cache_cap
    return None if cap is None else cap // config.parallel.num_ranks


def _choice_of_blocks(config: EngineConfig, pages: CachePages, size: CacheSize) -> str:
    held, cap = _held(size.num_blocks, len(pages.specs), config.cache.block_size), _cap(config)
    of_requests = f"what {config.scheduler.max_num_seqs} requests can need"
    within = "the memory left" if cap is None else f"{of_requests}, within {_gib(cap, 'g')}"
    return f"num_kv_blocks = {size.num_blocks} ({_gib(size.num_blocks * _block_bytes(pages))}, {held}): {within}"


def _blocks_of_one(config: EngineConfig, pages: CachePages) -> int:
    """Blocks that the longest request takes."""
    step_tokens = config.scheduler.max_num_batched_tokens
    return blocks_of_request(pages.specs, config.model.max_model_len, config.cache.block_size, step_tokens)


def _capacity(config: EngineConfig, pages: CachePages, num_blocks: int) -> int:
    """Tokens of the longest request that so many blocks hold, up to what the model takes.

    Raises:
        ConfigError: that is not even two, or less than was asked for.
    """
    cache, model = config.cache, config.model
    capacity = longest_request(
        *(pages.specs, num_blocks, cache.block_size),
        step_tokens=config.scheduler.max_num_batched_tokens,
        limit=max(model.max_model_len, 2),
    )
    is_strict = model.max_model_len_given or cache.strict_memory
    if capacity < 2 or (capacity < model.max_model_len and is_strict):
        needed = _blocks_of_one(config, pages) * _block_bytes(pages)
        raise ConfigError(
            f"the KV cache is too small for one request: {num_blocks} blocks of {cache.block_size} tokens "
            f"hold {capacity}, max_model_len is {model.max_model_len} and takes {needed / (1 << 20):.1f} MiB: "
            "give more kv_cache_memory or num_kv_blocks, or a smaller max_model_len"
        )
    return capacity


def _choices_of_states(config: EngineConfig, pages: CachePages, size: CacheSize) -> Iterator[str]:
    """A line for the slots of requests, and one for those of prefixes, where layers keep states."""
    if not pages.slot_bytes:
        return
    held, of_whom = _gib(size.num_slots * pages.slot_bytes), "states of as many requests"
    if pages.slots_each > 1:
        of_whom = f"states of {size.num_slots // pages.slots_each} requests, one and one for each draft"
    yield f"num_slots = {size.num_slots} ({held}): {of_whom}, within half of the memory"
    if config.cache.enable_prefix_caching:
        held = _gib(size.num_snapshots * pages.slot_bytes)
        found = "states behind cached prefixes" if size.num_snapshots else "no prefix is found"
        yield f"num_snapshots = {size.num_snapshots} ({held}): {found}, within a quarter of the memory"


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
    return min(config.scheduler.max_num_seqs * of_one, max(memory, 0) // Slots.snapshot_part // pages.slot_bytes)


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


def _gib(size: int, form: str = ".2f") -> str:
    return f"{size / (1 << 30):{form}} GiB"
