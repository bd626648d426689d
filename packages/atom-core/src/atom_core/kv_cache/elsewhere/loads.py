"""`Loads`: which tables wait for blocks from elsewhere, and which blocks wait for the end of a load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atom_core.kv_cache.block_table import BlockTable
from atom_core.kv_cache.elsewhere.protocol import BlockKey, BlocksElsewhere, FinishedLoad
from atom_core.messages import TransferResult

# Stands in a table for a block that has to be loaded, until it gets one.
ELSEWHERE = -1


class Loads:
    """Loads that have not ended. A request that ends before its load gives its blocks up only then."""

    def __init__(self, elsewhere: BlocksElsewhere) -> None:
        self._elsewhere = elsewhere
        self._given_up: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return len(self._given_up)

    def hold(self, table: BlockTable, groups: Iterable[int]) -> list[tuple[int, int]]:
        """Begin the load of all that `table` has to load: groups and indexes of these blocks, in the load's order.

        What is held is not lost elsewhere, when blocks for it are found by evicting others.
        """
        to_load = [
            (group, index)
            for group in groups
            for index, block_id in enumerate(table.groups[group])
            if block_id == ELSEWHERE
        ]
        if not to_load:
            return []
        table.load_id = self._elsewhere.hold([self._key(table.hashes[index], group) for group, index in to_load])
        self._given_up[table.load_id] = []
        return to_load

    def begin(self, table: BlockTable, to_load: Sequence[tuple[int, int]]) -> None:
        """The table has blocks for what `hold` found."""
        if table.load_id is not None:
            self._elsewhere.load(table.load_id, [table.groups[group][index] for group, index in to_load])

    def give_up(self, load_id: int, block_ids: list[int]) -> None:
        """The table that waits for a load is no more."""
        self._given_up[load_id] = block_ids

    def _key(self, name: bytes, group: int) -> BlockKey:
        key = BlockKey(name, group)
        return key if key in self._elsewhere else key._replace(is_followed=False)

    def take_results(self, results: Sequence[TransferResult]) -> tuple[list[FinishedLoad], list[int]]:
        """The loads that have ended, and blocks that nobody waits for any more."""
        finished = self._elsewhere.take_results(results)
        return finished, [block_id for load in finished for block_id in self._given_up.pop(load.load_id)]
