"""How many blocks the KV cache gets, out of the memory there is. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from atom_core.config.options import ConfigError
from atom_core.config.sections import CacheConfig

# A CPU's memory belongs to other programs too: the engine takes no more than this unless asked to.
CPU_CACHE_CAP = 2 << 30


@dataclass(frozen=True)
class CacheSize:
    """The cache's size, and the longest request that it lets in. `choices` says what was chosen, a line each."""

    num_blocks: int
    max_model_len: int
    choices: tuple[str, ...] = ()


def size_cache(
    cache: CacheConfig,
    *,
    block_bytes: int,
    max_num_seqs: int,
    max_model_len: int,
    max_model_len_given: bool,
    memory: int,
    on_cpu: bool,
) -> CacheSize:
    """Work out the number of blocks.

    Args:
        block_bytes: bytes of one block over all layers.
        memory: bytes that the cache may take before `memory_utilization` (a CPU) or after it (a GPU).

    Raises:
        ConfigError: the cache would hold less than one request of `max_model_len` tokens.
    """
    choices: list[str] = []
    blocks_of_one = -(-max_model_len // cache.block_size)
    if cache.num_blocks is not None:
        num_blocks = cache.num_blocks
    elif cache.memory_bytes is not None:
        num_blocks = cache.memory_bytes // block_bytes
    else:
        budget = min(int(memory * cache.memory_utilization), CPU_CACHE_CAP) if on_cpu else memory
        num_blocks = min(budget // block_bytes, max_num_seqs * blocks_of_one)
        size = f"{num_blocks * block_bytes / (1 << 30):.2f} GiB, {num_blocks * cache.block_size} tokens"
        why = (
            f"what {max_num_seqs} requests can need, within {CPU_CACHE_CAP >> 30} GiB" if on_cpu else "the memory left"
        )
        choices.append(f"num_kv_blocks = {num_blocks} ({size}): {why}")
    capacity = num_blocks * cache.block_size
    if capacity < 2 or (capacity < max_model_len and max_model_len_given):
        raise ConfigError(
            f"the KV cache is too small for one request: {num_blocks} blocks of {cache.block_size} tokens "
            f"hold {capacity}, max_model_len is {max_model_len} "
            f"and takes {blocks_of_one * block_bytes / (1 << 20):.1f} MiB: "
            "give more kv_cache_memory or num_kv_blocks, or a smaller max_model_len"
        )
    if capacity < max_model_len:
        choices.append(
            f"max_model_len = {capacity}: the KV cache holds no longer one (the model could {max_model_len})"
        )
    return CacheSize(num_blocks, min(max_model_len, capacity), tuple(choices))


def available_memory() -> int:
    """Bytes that this process could still take on the host, by the kernel and by its control group."""
    free = _meminfo("MemAvailable")
    limit, used = _number("/sys/fs/cgroup/memory.max"), _number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        free = min(free, max(limit - used, 0))
    return free


def _meminfo(key: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, rest = line.partition(":")
        if name == key:
            return int(rest.split()[0]) * 1024
    return 1 << 62


def _number(path: str) -> int | None:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return None
