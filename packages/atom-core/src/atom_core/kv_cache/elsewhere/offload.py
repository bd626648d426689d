"""`OffloadedBlocks`: blocks that left the paged cache, in host memory and behind it on a disk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from atom_core.kv_cache.elsewhere.places import Places
from atom_core.kv_cache.elsewhere.protocol import BlockKey, FinishedLoad
from atom_core.messages import BlockCopy, BlockTransfers, OffloadStats, Transfer, TransferResult


@dataclass(eq=False)
class _Contents:
    """Where the contents of a block are; on the disk only once `is_written`."""

    memory: int | None = None
    disk: int | None = None
    is_written: bool = False


@dataclass(eq=False)
class _Pending:
    """A transfer that has not ended: what it moves from where, and the places that it pins."""

    kind: str
    moved: list[tuple[BlockKey, _Contents]] = field(default_factory=list)
    pinned: list[int] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)


class OffloadedBlocks:
    """`BlocksElsewhere` in places of the workers: ``0 .. num_in_memory - 1`` in memory, those behind them on a disk.

    Between the two lie `num_others` places of others.

    A block that is saved goes to memory, and with a disk from there to the disk as well, beside steps. Room in memory
    is made by forgetting: what the disk has first, and then what was unused for longest. The cache gives up the end of
    a prompt before its beginning, without which the end is of no use. So what left it last is written first, and no
    more than half of memory at once: the other half takes what leaves it meanwhile. Every rank of an engine does the
    same with its part of each block. `ids` numbers transfers, of which others may take some.
    """

    def __init__(
        self, num_in_memory: int, num_on_disk: int = 0, *, num_others: int = 0, ids: Iterator[int] | None = None
    ) -> None:
        self._memory = Places(0, num_in_memory)
        self._disk = Places(num_in_memory + num_others, num_on_disk)
        self._ids = itertools.count(1) if ids is None else ids
        self._contents: dict[BlockKey, _Contents] = {}
        self._saves: dict[int, int] = {}  # block ids by place
        self._unwritten: dict[BlockKey, int] = {}  # places of what the disk is to have too
        self._begun: list[Transfer] = []
        self._pending: dict[int, _Pending] = {}
        self._void: set[int] = set()
        self._num_saved = self._num_not_saved = self._num_from_memory = self._num_from_disk = self._num_failed = 0

    def __contains__(self, key: BlockKey) -> bool:
        contents = self._contents.get(key)
        return contents is not None and (contents.memory is not None or contents.is_written)

    def leads_on(self, name: bytes) -> bool:
        """See `FindableBlocks`. What was once passed by is not remembered here."""
        return False

    def save(self, key: BlockKey, block_id: int) -> bool:
        """See `BlocksElsewhere`. What is elsewhere already is not copied again."""
        contents = self._contents.get(key) or _Contents()
        if contents.memory is not None:
            self._memory.touch(contents.memory)
            return True
        taken = self._memory.take(key)
        if taken is None:
            self._num_not_saved += not contents.is_written
            return contents.is_written
        place, lost = taken
        if lost is not None:
            self._lose_memory(lost)
        # A save that no step was told of yet is replaced with its place.
        self._saves[place] = block_id
        contents.memory = place
        self._contents[key] = contents
        if contents.disk is not None:
            self._memory.set_spare(place, True)
        elif self._disk.count:
            self._unwritten[key] = place
        return True

    def hold(self, keys: Sequence[BlockKey]) -> int:
        """See `BlocksElsewhere`. What the disk has may leave memory: that has room for what is evicted meanwhile."""
        pending = _Pending("load", [(key, self._contents[key]) for key in keys])
        for _, contents in pending.moved:
            self._pin(pending, contents.disk if contents.is_written else contents.memory)
        return self._add(pending)

    def load(self, load_id: int, block_ids: Sequence[int]) -> None:
        """See `BlocksElsewhere`. Each comes from memory if it is still there."""
        pending = self._pending[load_id]
        for _, contents in pending.moved:
            place = contents.disk if contents.memory is None else contents.memory
            pending.sources.append(self._pin(pending, place))
        copies = tuple(BlockCopy(*copy) for copy in zip(pending.sources, block_ids, strict=True))
        self._begun.append(Transfer(load_id, "load", copies))

    def take_transfers(self) -> BlockTransfers | None:
        """See `BlocksElsewhere`."""
        self._begin_write()
        if not (self._saves or self._pending):
            return None
        saves = tuple(BlockCopy(block_id, place) for place, block_id in self._saves.items())
        begun = tuple(self._begun)
        self._num_saved += len(saves)
        self._saves, self._begun = {}, []
        return BlockTransfers(saves, begun, tuple(self._pending))

    def take_results(self, results: Sequence[TransferResult]) -> list[FinishedLoad]:
        """See `BlocksElsewhere`. Contents that could not be copied are forgotten."""
        finished = []
        for result in results:
            pending = self._pending.pop(result.transfer_id, None)
            if pending is None:
                continue
            if pending.kind == "write":
                self._end_write(pending, result.num_done)
            # What begins a prompt comes first in a transfer, and is to be forgotten last.
            for place in reversed(pending.pinned):
                self._places_of(place).unpin(place)
            if pending.kind == "write":
                continue
            is_right = self._end_load(pending, result.num_done) and result.transfer_id not in self._void
            self._void.discard(result.transfer_id)
            finished.append(FinishedLoad(result.transfer_id, is_right))
        return finished

    def forget(self) -> None:
        """See `BlocksElsewhere`."""
        for key in list(self._contents):
            self._drop(key)
        self._void.update(number for number, pending in self._pending.items() if pending.kind == "load")

    def stats(self) -> OffloadStats:
        """Counts as they stand."""
        return OffloadStats(
            num_in_memory=len(self._memory),
            num_memory_places=self._memory.count,
            num_on_disk=len(self._disk),
            num_disk_places=self._disk.count,
            num_saved=self._num_saved,
            num_not_saved=self._num_not_saved,
            num_loaded_from_memory=self._num_from_memory,
            num_loaded_from_disk=self._num_from_disk,
            num_failed=self._num_failed,
        )

    def _places_of(self, place: int) -> Places:
        return self._memory if place < self._memory.count else self._disk

    def _pin(self, pending: _Pending, place: int | None) -> int:
        if place is None:
            raise ValueError("contents that are nowhere cannot be moved")
        self._places_of(place).pin(place)
        pending.pinned.append(place)
        return place

    def _add(self, pending: _Pending) -> int:
        number = next(self._ids)
        self._pending[number] = pending
        return number

    def _begin_write(self) -> None:
        """Copy to the disk what left the cache last, unless a write runs, or all of the disk is in use right now."""
        if any(pending.kind == "write" for pending in self._pending.values()):
            return
        write, most = _Pending("write"), max(self._memory.count // 2, 1)
        copies: list[BlockCopy] = []
        while self._unwritten and len(copies) < most:
            key = next(reversed(self._unwritten))
            taken = self._disk.take(key)
            if taken is None:
                break
            target, lost = taken
            if lost is not None:
                self._lose_disk(lost)
            contents = self._contents[key]
            contents.disk = self._pin(write, target)
            copies.append(BlockCopy(self._pin(write, self._unwritten.pop(key)), target))
            write.moved.append((key, contents))
        if copies:
            self._begun.append(Transfer(self._add(write), "write", tuple(copies)))

    def _end_write(self, pending: _Pending, num_done: int) -> None:
        for index, (key, contents) in enumerate(pending.moved):
            if self._contents.get(key) is not contents:
                continue  # forgotten meanwhile
            contents.is_written = index < num_done
            if contents.is_written and contents.memory is not None:
                self._memory.set_spare(contents.memory, True)
            elif contents.disk is not None:
                self._disk.free(contents.disk)
                self._lose_disk(key)

    def _end_load(self, pending: _Pending, num_done: int) -> bool:
        """Count what was loaded; whether all of it was."""
        for place in pending.sources[:num_done]:
            if place < self._memory.count:
                self._num_from_memory += 1
            else:
                self._num_from_disk += 1
        if num_done >= len(pending.moved):
            return True
        self._num_failed += 1
        key, contents = pending.moved[num_done]
        if self._contents.get(key) is contents:
            self._drop(key)
        return False

    def _lose_memory(self, key: BlockKey) -> None:
        contents = self._contents[key]
        was_on_its_way = self._unwritten.pop(key, None) is not None
        self._num_not_saved += was_on_its_way or (contents.memory in self._saves and not contents.is_written)
        contents.memory = None
        if contents.disk is None:
            del self._contents[key]

    def _lose_disk(self, key: BlockKey) -> None:
        contents = self._contents[key]
        contents.disk, contents.is_written = None, False
        if contents.memory is None:
            del self._contents[key]
        else:
            self._memory.set_spare(contents.memory, False)

    def _drop(self, key: BlockKey) -> None:
        contents = self._contents.pop(key)
        self._unwritten.pop(key, None)
        if contents.memory is not None:
            self._memory.free(contents.memory)
        if contents.disk is not None:
            self._disk.free(contents.disk)
