"""`BlockPool`: who holds each block, and which free block goes next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from atom_core.kv_cache.vacant_runs import VacantRuns

# Where a request may still grow, a new run has up to this many vacant blocks behind it.
GROWTH_RUN = 16


class BlockPool:
    """Reference counts of blocks ``0 .. num_blocks - 1``.

    A block with no holder is free: *vacant*, or still *cached* under a prefix. Runs of vacant blocks are handed out
    first; where none is long enough, the cached block unused for longest is evicted, and neighbors of it from the older
    half of the cached blocks: eviction in strict order would leave every request with scattered blocks. The same holds
    for a request that grows: its neighbor is evicted only where no vacant run has room for it.
    `on_evict(block_id)` tells the prefix cache to forget one.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self._on_evict = on_evict
        self._num_holders = [0] * num_blocks
        self._is_cached = bytearray(num_blocks)
        self._vacant = VacantRuns(num_blocks)
        # Free cached blocks, unused for longest first, with the time (in releases) at which they became free.
        self._idle_cached: OrderedDict[int, int] = OrderedDict()
        self._time = 0

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
            ValueError: a block that is not held."""
        vacated: list[int] = []
        for block_id in reversed(block_ids):
            holders = self._num_holders[block_id] - 1
            if holders < 0:
                raise ValueError(f"block {block_id} was released more often than it was held")
            self._num_holders[block_id] = holders
            if holders == 0:
                if self._is_cached[block_id]:
                    self._time += 1
                    self._idle_cached[block_id] = self._time
                else:
                    vacated.append(block_id)
        self._vacate(vacated)

    def set_cached(self, block_id: int, is_cached: bool) -> None:
        """Note that the prefix cache names a (held) block now, or no longer."""
        self._is_cached[block_id] = is_cached
        if not is_cached and block_id in self._idle_cached:
            del self._idle_cached[block_id]
            self._vacant.add(block_id, block_id + 1)

    def _take_run(self, block_ids: list[int], count: int, after: int | None, room: int) -> None:
        """Extend `block_ids` by up to `count` adjacent blocks: those behind `after`, or a new run."""
        liked = count + min(room, GROWTH_RUN)
        if after is not None:
            start = after + 1
            if self._longest_vacant() < liked and self._is_old(start):
                self._evict(start)
            length = self._vacant.length_at(start)
            if length:
                self._take(block_ids, start, start, min(count, length))
                return
        if self._idle_cached and self._longest_vacant() < liked:
            self._make_run(liked)
        start, end = self._vacant.longest()
        spare = max(end - start - liked, 0)
        # Some of the spare blocks are left to the neighbor in front, to grow into; the lowest run has no neighbor.
        first = start + min(room, spare // 2) if start else 0
        self._take(block_ids, start, first, min(count, end - first))

    def _take(self, block_ids: list[int], start: int, first: int, count: int) -> None:
        self._vacant.take(start, first, count)
        block_ids.extend(range(first, first + count))

    def _longest_vacant(self) -> int:
        if not len(self._vacant):
            return 0
        start, end = self._vacant.longest()
        return end - start

    def _make_run(self, length: int) -> None:
        """Evict the block unused for longest, then old neighbors, until `length` vacant ones are adjacent."""
        block_id = next(iter(self._idle_cached))
        first, last, evicted = block_id, block_id, []
        while True:
            self._forget(block_id)
            evicted.append(block_id)
            first, last = min(first, block_id), max(last, block_id)
            # Evicted blocks become vacant together, but others that were named with one of them have done so already.
            start, end = self._vacant.around(first, last + 1)
            if end - start >= length:
                break
            if self._is_old(start - 1):
                block_id = start - 1
            elif self._is_old(end):
                block_id = end
            else:
                break
        self._vacate(evicted)

    def _is_old(self, block_id: int) -> bool:
        """Whether the block is free and cached, and has been so for at least half as long as the oldest one."""
        since = self._idle_cached.get(block_id)
        if since is None:
            return False
        oldest = self._idle_cached[next(iter(self._idle_cached))]
        return 2 * since <= oldest + self._time

    def _evict(self, block_id: int) -> None:
        """Make a free cached block vacant."""
        self._forget(block_id)
        self._vacant.add(block_id, block_id + 1)

    def _forget(self, block_id: int) -> None:
        """What a free cached block stores is not cached any more; it is to become vacant."""
        del self._idle_cached[block_id]
        self._is_cached[block_id] = 0
        if self._on_evict is not None:
            self._on_evict(block_id)

    def _vacate(self, block_ids: list[int]) -> None:
        """Blocks that are neither held nor named by a prefix become vacant, whole runs at a time."""
        block_ids.sort()
        start = 0
        for i, block_id in enumerate(block_ids, 1):
            if i == len(block_ids) or block_ids[i] != block_id + 1:
                self._vacant.add(block_ids[start], block_id + 1)
                start = i
