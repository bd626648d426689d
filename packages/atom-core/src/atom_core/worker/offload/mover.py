"""`BlockMover`: carries out what steps say of blocks that live elsewhere, and tells what has ended."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait

from atom_core.messages import BlockTransfers, TransferResult
from atom_core.worker.offload.places import HostPlaces
from atom_core.worker.offload.protocol import BlockCarrier
from atom_core.worker.ranks.protocol import WorkerRanks

# A step with nothing to compute waits for so long for a transfer to end: requests may come meanwhile.
WAIT_SECONDS = 0.005


class BlockMover:
    """Saves at once, and leaves all else to carriers, whose transfers run beside steps.

    Every rank moves its own part of each block. What failed on one rank has failed, and what has not ended on one has
    not ended: the ranks agree on it.

    Args:
        places: where saves go.
        carriers: each does the kinds of transfers that it names.
        ranks: the ranks that get the same steps.
    """

    def __init__(self, places: HostPlaces, carriers: Sequence[BlockCarrier], ranks: WorkerRanks) -> None:
        self._places, self._carriers, self._ranks = places, carriers, ranks
        self._by_kind = {kind: carrier for carrier in carriers for kind in carrier.kinds}
        self._running: dict[int, Future[int]] = {}

    def begin(self, transfers: BlockTransfers) -> None:
        """Carry out the saves, and begin what is to begin; what is not awaited any more is forgotten."""
        self._places.save(transfers.saves)
        awaited = set(transfers.awaited)
        self._running = {number: future for number, future in self._running.items() if number in awaited}
        for transfer in transfers.begun:
            self._running[transfer.transfer_id] = self._by_kind[transfer.kind].begin(transfer)

    def results(self, transfers: BlockTransfers, *, wait_for_one: bool) -> tuple[TransferResult, ...]:
        """Those of the awaited transfers that have ended on every rank.

        Args:
            wait_for_one: wait for a moment where none has ended.
        """
        for carrier in self._carriers:
            carrier.look()
        running = [self._running[number] for number in transfers.awaited if number in self._running]
        if wait_for_one and running and not any(future.done() for future in running):
            wait(running, timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
        agreed = ((number, self._ranks.smallest(self._num_done(number))) for number in transfers.awaited)
        return tuple(TransferResult(number, num_done) for number, num_done in agreed if num_done >= 0)

    def close(self) -> None:
        """Finish what runs, drop the rest, and let go of what is kept."""
        for carrier in self._carriers:
            carrier.close()

    def _num_done(self, number: int) -> int:
        """Copies that are right; -1 while it runs. What an earlier failure kept from beginning has none."""
        future = self._running.get(number)
        if future is None:
            return 0
        return future.result() if future.done() else -1
