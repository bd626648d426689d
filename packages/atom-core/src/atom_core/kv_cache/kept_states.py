"""`KeptStates`: the slots of layers that keep one state a request, and what states were behind cached prefixes."""

from __future__ import annotations

from collections.abc import Callable

from atom_core.kv_cache.block_table import BlockTable
from atom_core.kv_cache.config import KVCacheConfig
from atom_core.kv_cache.prefix_cache import Hit
from atom_core.kv_cache.slot_pool import NO_SLOT, SlotPool
from atom_core.kv_cache.snapshot_pool import SnapshotPool
from atom_kernels.protocols import slot_of_state


class KeptStates:
    """A request holds the same slots in all groups that keep states; states behind prefixes lie in slots of their own.

    Without such groups there is nothing to hold. `on_evict(snapshot_id)` is told of a state that is to be overwritten.

    Attributes:
        slots: tells which request has which slots.
        snapshots: tells which slots hold states behind prefixes.
    """

    def __init__(self, config: KVCacheConfig, on_evict: Callable[[int], None]) -> None:
        self._block_size, self._slots_each = config.block_size, config.slots_each
        self._groups = [index for index, group in enumerate(config.groups) if group.in_slots]
        self.slots = SlotPool(config.num_slots, max(config.slots_each, 1))
        self.snapshots = SnapshotPool(
            config.num_snapshots, first_id=config.num_blocks, first_slot=config.num_slots + 1, on_evict=on_evict
        )
        self._copies: dict[int, int] = {}

    @property
    def have_room(self) -> bool:
        """Whether another request could begin."""
        return not self._groups or self.slots.num_free > 0

    def begin(self, table: BlockTable, hit: Hit) -> None:
        """Give `table` slots, to one of which the state behind the prefix that was found will be copied."""
        if not self._groups:
            return
        first = self.slots.take()
        if hit.found:
            snapshot_id = hit.block_ids(self._groups[0])[-1]
            target = slot_of_state(first, len(hit.found) * self._block_size, self._slots_each)
            self._copies[target] = self.snapshots.slot(snapshot_id)
            self.snapshots.touch(snapshot_id)
        table.hold_slot(first, self._groups)

    def keep(self, table: BlockTable, num_tokens: int) -> tuple[int, int] | None:
        """The state behind the first `num_tokens` tokens, a multiple of the block size, is to be found by its prefix.

        Returns the slots from which and to which the step that computes the last of them copies it; None where steps
        in flight fill all snapshots.
        """
        snapshot_id = self.snapshots.reserve()
        if snapshot_id is None:
            return None
        table.snapshots[num_tokens // self._block_size - 1] = snapshot_id
        return slot_of_state(table.slot, num_tokens, self._slots_each), self.snapshots.slot(snapshot_id)

    def take_copies(self) -> list[tuple[int, int]]:
        """Slots from which and to which the next step copies states before it is computed, told once.

        A copy for a request that is gone does no harm: who has its slots now brings another, or begins from zeros.
        """
        if not self._copies:
            return []
        copies, self._copies = self._copies, {}
        return [(source, target) for target, source in copies.items()]

    def written(self, table: BlockTable, num_blocks: int) -> None:
        """States that `keep` asked for behind the first `num_blocks` blocks are written now."""
        for index in [index for index in table.snapshots if index < num_blocks]:
            self.snapshots.release(table.snapshots.pop(index))

    def release(self, table: BlockTable) -> None:
        """Give up the slots of `table`, and the snapshots that it was about to write."""
        if table.slot != NO_SLOT:
            self.slots.give_back(table.slot)
            for snapshot_id in table.snapshots.values():
                self.snapshots.release(snapshot_id)
