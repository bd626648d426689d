"""`BlockPool`: who holds each block, and which free block goes next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from atom_core.kv_cache.vacant_runs import VacantRuns

# A growing request that must evict frees a few blocks more than it needs: blocks given up together are often neighbors,
# so that its next ones will be adjacent. Never more than this part of the pool.
EVICTION_RUN, EVICTION_PART = 16, 64


class BlockPool:
    """Reference counts of blocks ``0 .. num_blocks - 1``.

    A block with no holder is free: *vacant*, or still *cached* under a prefix. Vacant blocks are handed out first, then
    cached ones, those unused for longest first; `on_evict(block_id)` tells the prefix cache to forget one.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._num_holders = [0] * num_blocks
        self._is_cached = bytearray(num_blocks)
        self._vacant = VacantRuns(num_blocks)
        self._idle_cached: OrderedDict[int, None] = OrderedDict()
        self._eviction_run = max(1, min(EVICTION_RUN, num_blocks // EVICTION_PART))

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` could hand out."""
        return len(self._vacant) + len(self._idle_cached)

    @property
    def num_vacant(self) -> int:
        """Free blocks that store nothing."""
        return len(self._vacant)

    def num_holders(self, block_id: int) -> int:
        """How many times the block is held."""
        return self._num_holders[block_id]

    def allocate(self, count: int, *, after: int | None = None, room: int = 0) -> list[int]:
        """Hold `count` free blocks, in as few runs of adjacent ids as there are.

        Args:
            after: the holder's last block; its neighbor is taken if vacant.
            room: how many more blocks the holder may ask for later. A new run starts about so far behind its
                neighbor, so that both can grow.

        Raises:
            ValueError: fewer than `count` are free.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks were asked for, {self.num_free} of {self.num_blocks} are free")
        if count > len(self._vacant):
            self._evict(max(count - len(self._vacant), 0 if after is None else self._eviction_run))
        block_ids: list[int] = []
        while len(block_ids) < count:
            self._take_run(block_ids, count - len(block_ids), after, room)
            after = block_ids[-1]
        for block_id in block_ids:
            self._num_holders[block_id] = 1
        return block_ids

    def retain(self, block_ids: Iterable[int]) -> None:
        """Hold cached blocks once more."""
        for block_id in block_ids:
            if self._num_holders[block_id] == 0:
                del self._idle_cached[block_id]
            self._num_holders[block_id] += 1

    def release(self, block_ids: Sequence[int]) -> None:
        """Give up one hold of each block of a table; its last blocks will be evicted before its first.

        Raises:
            ValueError: a block that nobody holds.
        """
        vacated: list[int] = []
        for block_id in reversed(block_ids):
            holders = self._num_holders[block_id] - 1
            if holders < 0:
                raise ValueError(f"block {block_id} was released more often than it was held")
            self._num_holders[block_id] = holders
            if holders == 0:
                if self._is_cached[block_id]:
                    self._idle_cached[block_id] = None
                else:
                    vacated.append(block_id)
        self._vacate(vacated)

    def set_cached(self, block_id: int, is_cached: bool) -> None:
        """The prefix cache has come to know a (held) block, or knows it no longer."""
        self._is_cached[block_id] = is_cached
        if not is_cached and block_id in self._idle_cached:
            del self._idle_cached[block_id]
            self._vacant.add(block_id, block_id + 1)

    def _take_run(self, block_ids: list[int], count: int, after: int | None, room: int) -> None:
        start = -1 if after is None else after + 1
        first, length = start, self._vacant.length_at(start)
        if not length:
            start, end = self._vacant.longest()
            length = end - start
            first = start if start == 0 else start + min(room, max(length - count, 0) // 2)
        taken = min(count, length)
        self._vacant.take(start, first, taken)
        block_ids.extend(range(first, first + taken))

    def _evict(self, count: int) -> None:
        evicted = []
        while self._idle_cached and len(evicted) < count:
            block_id, _ = self._idle_cached.popitem(last=False)
            self._is_cached[block_id] = 0
            if self._on_evict is not None:
                self._on_evict(block_id)
            evicted.append(block_id)
        self._vacate(evicted)

    def _vacate(self, block_ids: list[int]) -> None:
        """Blocks that nobody holds and no prefix names become vacant, whole runs at a time."""
        block_ids.sort()
        start = 0
        for i, block_id in enumerate(block_ids, 1):
            if i == len(block_ids) or block_ids[i] != block_id + 1:
                self._vacant.add(block_ids[start], block_id + 1)
                start = i
