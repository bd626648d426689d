"""Ranks that sum by AITER's emulator: threads of one process that share memory of its custom all-reduce."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from amd_machine import amd_machine
from atom_kernels.aiter.all_reduce import share_memory
from atom_kernels.protocols import SingleRank
from thread_ranks import Group


class Rank(SingleRank):
    """A rank that only says which memory it shares."""

    def __init__(self, peers: Any) -> None:
        self.rank, self.size, self.peers = peers.rank, peers.size, peers


def told_by(ranks: SingleRank) -> dict[str, Any]:
    """How a rank of this machine learns of the others' memory."""
    return {"device": torch.device("cpu"), "gather": lambda one: ranks.all_gather(one[None], 0)}


def on_ranks(size: int, work: Callable[[Rank], Any], arch: str = "gfx942") -> list[Any]:
    """What `work(rank)` gives on each of so many ranks that share memory."""
    group = Group(size)
    with amd_machine(arch), torch.inference_mode():

        def run(rank: int) -> Any:
            ranks = group.as_rank(rank)
            with torch.inference_mode():
                shared = share_memory(rank, size, **told_by(ranks))
                return work(Rank(shared))

        return group.run(run)


def parts_of(size: int, rows: int, hidden: int, dtype: torch.dtype, seed: int = 0) -> list[torch.Tensor]:
    """Random rows for each rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, hidden, generator=generator).to(dtype) for _ in range(size)]


def in_order(parts: list[torch.Tensor]) -> torch.Tensor:
    """The sum in float32, in the order of ranks, rounded once."""
    return sum((part.float() for part in parts), torch.zeros(parts[0].shape)).to(parts[0].dtype)
