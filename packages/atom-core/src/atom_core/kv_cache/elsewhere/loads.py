"""`Loads`: which tables wait for blocks from elsewhere, and which blocks wait for the end of a load."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from atom_core.kv_cache.block_table import BlockTable
from atom_core.kv_cache.elsewhere.peers import PeerBlocks
from atom_core.kv_cache.elsewhere.protocol import BlockKey, BlocksElsewhere, FindableBlocks, FinishedLoad
from atom_core.messages import BlockTransfers, TransferResult

# Stands in a table for a block that has to be loaded, until it gets one.
ELSEWHERE = -1


class Loads:
    """Loads that have not ended. A request that ends before its load gives its blocks up only then.

    What a request has at a peer is loaded from there, and what others have from where blocks go that leave the cache.
    """

    def __init__(self, elsewhere: BlocksElsewhere | None, peers: PeerBlocks | None = None) -> None:
        self._elsewhere, self._peers = elsewhere, peers
        self._given_up: dict[int, list[int]] = {}

    def seen_by(self, table: BlockTable) -> FindableBlocks | None:
        """What a request can load."""
        return self._elsewhere if table.at_peer is None else table.at_peer

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
        if table.at_peer is not None and self._peers is not None:
            table.load_id = self._peers.hold(table.at_peer, to_load)
        elif self._elsewhere is not None:
            keys = [_key(self._elsewhere, table.hashes[index], group) for group, index in to_load]
            table.load_id = self._elsewhere.hold(keys)
        else:
            raise ValueError("blocks that are nowhere cannot be loaded")
        self._given_up[table.load_id] = []
        return to_load

    def begin(self, table: BlockTable, to_load: Sequence[tuple[int, int]]) -> None:
        """The table has blocks for what `hold` found."""
        source = self._elsewhere if table.at_peer is None else self._peers
        if table.load_id is not None and source is not None:
            source.load(table.load_id, [table.groups[group][index] for group, index in to_load])

    def give_up(self, load_id: int, block_ids: list[int]) -> None:
        """The table that waits for a load is no more."""
        self._given_up[load_id] = block_ids

    def take_transfers(self) -> BlockTransfers | None:
        """What the next step is told, once; None where it has nothing to do or to report."""
        sources = [source for source in (self._elsewhere, self._peers) if source is not None]
        parts = [part for source in sources if (part := source.take_transfers()) is not None]
        return sum(parts[1:], start=parts[0]) if parts else None

    def take_results(self, results: Sequence[TransferResult]) -> tuple[list[FinishedLoad], list[int]]:
        """The loads that have ended, and blocks that nobody waits for any more."""
        finished = [] if self._elsewhere is None else self._elsewhere.take_results(results)
        if self._peers is not None:
            finished += self._peers.take_results(results)
        return finished, [block_id for load in finished for block_id in self._given_up.pop(load.load_id)]

    def forget(self) -> None:
        """Nothing that was there so far is found any more, and loads on their way count as failed."""
        for source in (self._elsewhere, self._peers):
            if source is not None:
                source.forget()


def _key(elsewhere: BlocksElsewhere, name: bytes, group: int) -> BlockKey:
    key = BlockKey(name, group)
    return key if key in elsewhere else key._replace(is_followed=False)
