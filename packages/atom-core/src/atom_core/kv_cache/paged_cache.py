"""`PagedCache`: what the scheduler asks of the cache, for one request at a time."""

from __future__ import annotations

from atom_core.kv_cache.block_pool import BlockPool
from atom_core.kv_cache.block_table import BlockTable
from atom_core.kv_cache.config import KVCacheConfig
from atom_core.kv_cache.hashing import BlockHasher, make_block_hasher
from atom_core.kv_cache.prefix_cache import PrefixCache


class PagedCache:
    """Block pool and prefix cache of one group of layers.

    Attributes:
        num_queries, num_hits: tokens looked up in the prefix cache, and found.
        num_returning: blocks given up that a step in flight may still write.
    """

    def __init__(self, config: KVCacheConfig, hasher: BlockHasher | None = None) -> None:
        self.config = config
        self.num_queries = 0
        self.num_hits = 0
        self.num_returning = 0
        self._returning: dict[int, list[list[int]]] = {}
        self._prefixes: PrefixCache | None = None
        if config.enable_prefix_caching:
            self.pool = BlockPool(config.num_blocks, on_evict=self._forget)
            hasher = hasher or make_block_hasher(config.prefix_hash)
            self._prefixes = PrefixCache(config.block_size, hasher, self.pool.set_cached)
        else:
            self.pool = BlockPool(config.num_blocks)

    def num_blocks_for(self, num_tokens: int) -> int:
        """Blocks that store `num_tokens` tokens."""
        return -(-num_tokens // self.config.block_size)

    def admit(
        self, table: BlockTable, token_ids: list[int], *, use_prefix: bool, max_tokens: int, reserve: int, count: bool
    ) -> int | None:
        """Fill the empty `table` for all of `token_ids`: cached blocks first, then free ones.

        Args:
            use_prefix: look for cached blocks.
            max_tokens: tokens that the request may ever store.
            reserve: blocks that must stay free.
            count: this look-up enters the statistics.

        Returns how many tokens need not be computed (at most ``len(token_ids) - 1``); None, with nothing changed,
        where the free blocks do not suffice.
        """
        num_needed = self.num_blocks_for(len(token_ids))
        found = []
        if use_prefix and self._prefixes is not None:
            found = self._prefixes.find(table, token_ids, (len(token_ids) - 1) // self.config.block_size)
        num_idle = sum(self.pool.num_holders(cached.block_id) == 0 for cached in found)
        num_fresh = num_needed - len(found)
        if num_fresh + num_idle + reserve > self.pool.num_free:
            return None
        if self._prefixes is not None:
            self._prefixes.adopt(table, found)
        self.pool.retain(table.block_ids)
        table.block_ids += self.pool.allocate(
            num_fresh,
            after=table.block_ids[-1] if table.block_ids else None,
            room=self.num_blocks_for(max_tokens) - num_needed,
        )
        num_found_tokens = len(found) * self.config.block_size
        if count and use_prefix and self._prefixes is not None:
            self.num_queries += len(token_ids)
            self.num_hits += num_found_tokens
        return num_found_tokens

    def grow(self, table: BlockTable, num_tokens: int, max_tokens: int) -> bool:
        """Extend `table` so that it stores `num_tokens` tokens; False, with nothing changed, where blocks lack."""
        block_ids = table.block_ids
        num_fresh = self.num_blocks_for(num_tokens) - len(block_ids)
        if num_fresh <= 0:
            return True
        if num_fresh > self.pool.num_free:
            return False
        room = self.num_blocks_for(max_tokens) - len(block_ids) - num_fresh
        block_ids += self.pool.allocate(num_fresh, after=block_ids[-1] if block_ids else None, room=room)
        return True

    def publish(self, table: BlockTable, token_ids: list[int], num_computed_tokens: int) -> None:
        """The first `num_computed_tokens` tokens are computed, and their ids known: full blocks may be shared now."""
        num_blocks = num_computed_tokens // self.config.block_size
        if self._prefixes is not None and num_blocks > table.num_published:
            self._prefixes.publish(table, token_ids, num_blocks)

    def release(self, table: BlockTable, after_step: int | None = None) -> None:
        """Give up all blocks: at once, or when step `after_step`, the last that may write them, has been reported."""
        block_ids = table.block_ids
        table.clear()
        if after_step is None:
            self.pool.release(block_ids)
        else:
            self._returning.setdefault(after_step, []).append(block_ids)
            self.num_returning += len(block_ids)

    def step_reported(self, step_id: int) -> None:
        """Step `step_id` has run: blocks that waited for it return to the pool."""
        for block_ids in self._returning.pop(step_id, ()):
            self.num_returning -= len(block_ids)
            self.pool.release(block_ids)

    def _forget(self, block_id: int) -> None:
        if self._prefixes is not None:
            self._prefixes.forget(block_id)
