"""Ranks that are threads of this process, and count what they gather."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from atom_kernels.protocols import SingleRank


class Group:
    """Ranks that meet at barriers; `as_rank` is the `Collectives` of one of them.

    Attributes:
        gathered_bytes: what each rank has given to be gathered, by rank.
        rows_given: what each rank has given to others and itself by all-to-all, by rank.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size)
        self.slots: list[Any] = [None] * size
        self.gathered_bytes = [0] * size
        self.rows_given = [0] * size

    def exchange(self, rank: int, x: Any) -> list[Any]:
        self.slots[rank] = x
        self.barrier.wait(30)
        everything = list(self.slots)
        self.barrier.wait(30)
        return everything

    def as_rank(self, rank: int) -> SingleRank:
        group = self

        class Rank(SingleRank):
            size = group.size
            name = "threads"

            def __init__(self) -> None:
                self.rank = rank

            def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
                return torch.stack(group.exchange(rank, x)).sum(0)

            def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
                group.gathered_bytes[rank] += x.nbytes
                return torch.cat(group.exchange(rank, x), dim)

            def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
                return self.all_reduce(x).chunk(group.size)[rank]

            def all_to_all(self, x: torch.Tensor, give: Sequence[int], take: Sequence[int]) -> torch.Tensor:
                group.rows_given[rank] += len(x)
                found = [runs[rank] for runs in group.exchange(rank, x.split(list(give)))]
                assert [*map(len, found)] == list(take)
                return torch.cat(found)

        return Rank()

    def run(self, function: Callable[[int], Any]) -> list[Any]:
        """`function(rank)` on every rank at once; their results in order."""
        results: list[Any] = [None] * self.size

        def work(rank: int) -> None:
            try:
                results[rank] = function(rank)
            except BaseException as error:
                self.barrier.abort()
                results[rank] = error

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        errors = [result for result in results if isinstance(result, BaseException)]
        # Whoever waited for a rank that failed has a broken barrier: that one has the cause.
        for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
            raise error
        return results
