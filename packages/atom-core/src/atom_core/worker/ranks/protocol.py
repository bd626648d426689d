"""`WorkerRanks`: the ranks beside a worker, as it and its layers see them; `ALONE` is a worker by itself."""

from __future__ import annotations

from typing import Protocol

from atom_kernels.protocols import Collectives, SingleRank


class WorkerRanks(Collectives, Protocol):
    """`Collectives` of layers, and what hosts agree on. Every rank makes the same calls in the same order."""

    def smallest(self, number: int) -> int:
        """The smallest of the numbers that the ranks give, between -2**63 and 2**63 - 1."""
        ...

    def is_loss(self, error: BaseException) -> bool:
        """Whether `error` is that of a collective, which fails where another rank is gone: that one has the cause."""
        ...


class _Alone(SingleRank):
    def smallest(self, number: int) -> int:
        return number

    def is_loss(self, error: BaseException) -> bool:
        return False


ALONE: WorkerRanks = _Alone()
