"""Places elsewhere for the fake worker: transfers take some steps, and places can be damaged."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atom_core.messages import BlockTransfers, Transfer, TransferResult

if TYPE_CHECKING:
    from fake_worker import FakeEngine, FakeWorker


class FakeElsewhere:
    """What each place has: the values of a block's slots. A place of `damaged` cannot be read.

    Until a load ends, its blocks hold nothing that could be read; then they are written, whoever has them.

    Args:
        num_steps: steps from the one in which a transfer begins to the one that reports it.
    """

    def __init__(self, num_steps: int = 1) -> None:
        self.places: dict[int, list[int | None]] = {}
        self.damaged: set[int] = set()
        self._num_steps = num_steps
        self._running: dict[int, tuple[Transfer, int]] = {}
        self._ended: dict[int, TransferResult] = {}

    def run(self, transfers: BlockTransfers | None, worker: FakeWorker) -> tuple[TransferResult, ...]:
        """The part of a step that moves blocks."""
        for number, (transfer, left) in list(self._running.items()):
            if left <= 1:
                del self._running[number]
                self._ended[number] = self._end(transfer, worker)
            else:
                self._running[number] = transfer, left - 1
        if transfers is None:
            return ()
        for save in transfers.saves:
            values = worker.slots[self._slots(save.source, worker)]
            assert None not in values, "a block was saved that is not full"
            self.places[save.target] = values
        for transfer in transfers.begun:
            self._running[transfer.transfer_id] = transfer, self._num_steps
            for copy in transfer.copies if transfer.kind == "load" else ():
                worker.slots[self._slots(copy.target, worker)] = [None] * worker.block_size
        return tuple(self._ended[number] for number in transfers.awaited if number in self._ended)

    def _end(self, transfer: Transfer, worker: FakeWorker) -> TransferResult:
        for index, copy in enumerate(transfer.copies):
            if copy.source in self.damaged:
                return TransferResult(transfer.transfer_id, index)
            if transfer.kind == "write":
                self.places[copy.target] = self.places[copy.source]
            else:
                worker.slots[self._slots(copy.target, worker)] = self.places[copy.source]
        return TransferResult(transfer.transfer_id, len(transfer.copies))

    def _slots(self, block_id: int, worker: FakeWorker) -> slice:
        return slice(block_id * worker.block_size, (block_id + 1) * worker.block_size)


def let_offload(engine: FakeEngine, num_steps: int = 1) -> FakeElsewhere:
    """The engine's worker has places for blocks that leave its cache."""
    engine.worker.elsewhere = FakeElsewhere(num_steps)
    return engine.worker.elsewhere
