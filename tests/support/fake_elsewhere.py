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
        offers: what engines keep for each other, by the keys of prompts; whoever fetches a prompt takes it out.
    """

    def __init__(self, num_steps: int = 1, offers: dict[str, list[list[int | None]]] | None = None) -> None:
        self.offers = {} if offers is None else offers
        self._sends: dict[int, Transfer] = {}
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
            if transfer.kind == "send":
                self._offer(transfer)
                continue
            self._running[transfer.transfer_id] = transfer, self._num_steps
            for copy in transfer.copies if transfer.kind in ("load", "fetch") else ():
                worker.slots[self._slots(copy.target, worker)] = [None] * worker.block_size
        self._end_sends()
        return tuple(self._ended[number] for number in transfers.awaited if number in self._ended)

    def _offer(self, transfer: Transfer) -> None:
        assert transfer.prompt is not None
        self.offers[transfer.prompt.key] = [list(self.places[copy.source]) for copy in transfer.copies]
        self._sends[transfer.transfer_id] = transfer

    def _end_sends(self) -> None:
        for number, transfer in list(self._sends.items()):
            if transfer.prompt is not None and transfer.prompt.key not in self.offers:
                del self._sends[number]
                self._ended[number] = TransferResult(number, len(transfer.copies))

    def _fetch(self, transfer: Transfer, worker: FakeWorker) -> TransferResult:
        assert transfer.prompt is not None
        offered = self.offers.pop(transfer.prompt.key, None)
        if offered is None:
            return TransferResult(transfer.transfer_id, 0)
        for copy in transfer.copies:
            worker.slots[self._slots(copy.target, worker)] = offered[copy.source]
        return TransferResult(transfer.transfer_id, len(transfer.copies))

    def _end(self, transfer: Transfer, worker: FakeWorker) -> TransferResult:
        if transfer.kind == "fetch":
            return self._fetch(transfer, worker)
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
