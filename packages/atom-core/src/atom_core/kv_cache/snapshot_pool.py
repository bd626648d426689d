"""`SnapshotPool`: which slots hold states behind cached prefixes, and which of these goes next."""

from __future__ import annotations

from collections.abc import Callable

from atom_core.kv_cache.block_pool import BlockPool


class SnapshotPool:
    """Slots that hold what a state was behind a prefix; the one unused for longest is overwritten first.

    The prefix cache knows a snapshot by an id, as it knows blocks; ids begin at `first_id`, behind those of blocks. The
    worker knows it by its slot; slots begin at `first_slot`, behind those of requests. Steps run in order, so a step
    may overwrite a snapshot that one before it has yet to write or read.
    """

    def __init__(
        self, num_snapshots: int, *, first_id: int, first_slot: int, on_evict: Callable[[int], None] | None = None
    ) -> None:
        self.first_id = first_id
        self._first_slot = first_slot
        forget = None if on_evict is None else lambda number: on_evict(first_id + number)
        self._pool = BlockPool(num_snapshots, forget)

    @property
    def num_free(self) -> int:
        """Snapshots that no step in flight is to write."""
        return self._pool.num_free

    def slot(self, snapshot_id: int) -> int:
        """Where the worker has it."""
        return snapshot_id - self.first_id + self._first_slot

    def reserve(self) -> int | None:
        """The id of a snapshot that is about to be written; None where steps in flight write all of them."""
        return self._pool.allocate(1)[0] + self.first_id if self._pool.num_free else None

    def release(self, snapshot_id: int) -> None:
        """A reserved snapshot is written, or will not be needed."""
        self._pool.release([snapshot_id - self.first_id])

    def touch(self, snapshot_id: int) -> None:
        """A request goes on from a cached snapshot: it is the one used last."""
        self._pool.retain([snapshot_id - self.first_id])
        self.release(snapshot_id)

    def set_cached(self, snapshot_id: int, is_cached: bool) -> None:
        """Note that the prefix cache names it now, or no longer."""
        self._pool.set_cached(snapshot_id - self.first_id, is_cached)
