"""Ranks that are processes of this machine and share memory, for kernels that Triton's interpreter runs."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace

import torch

from atom_kernels.protocols import PeerMemory, PieceMemory, SingleRank
from atom_kernels.reduce.buffers import BufferLayout, peers_over, slots_in

# A rank that waits for one that failed would wait for ever.
_MOST_SECONDS = 60


class SharingRank(SingleRank):
    """One of so many ranks whose kernels see each other's memory, and which have no library."""

    def __init__(self, peers: PeerMemory) -> None:
        self.rank, self.size, self.peers = peers.rank, peers.size, peers


def shared_tensor(num_bytes: int) -> torch.Tensor:
    """Zeros that a process shares with those that it forks."""
    return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)


def shared_buffers(size: int, max_bytes: int) -> list[torch.Tensor]:
    return [shared_tensor(BufferLayout(size, max_bytes).num_bytes) for _ in range(size)]


class CopiedAtOnce:
    """`Carrier` on a CPU."""

    def __init__(self, theirs: torch.Tensor, their_numbers: torch.Tensor) -> None:
        self._theirs, self._numbers = theirs, their_numbers

    def carry(self, part: torch.Tensor, slot: int, number: int) -> None:
        self._theirs[slot, : part.nbytes].view(part.dtype).copy_(part.view(-1))
        self._numbers[slot] = number

    def settle(self) -> None:
        pass


def two_ranks_over(buffers: list[torch.Tensor], max_bytes: int) -> list[PeerMemory]:
    """Ranks that exchange pieces, too."""
    slots = [slots_in(buffer, max_bytes) for buffer in buffers]
    return [
        replace(peers_over(buffers, rank, max_bytes), pieces=PieceMemory(*own, CopiedAtOnce(*slots[1 - rank])))
        for rank, own in enumerate(slots)
    ]


def run_ranks(size: int, max_bytes: int, work: Callable[[SharingRank], None]) -> None:
    """`work(rank)` in a process for each rank; it leaves its results in memory that was shared before."""
    buffers = shared_buffers(size, max_bytes)
    peers = [peers_over(buffers, rank, max_bytes) for rank in range(size)]
    if size == 2:
        peers = two_ranks_over(buffers, max_bytes)
    children = [fork(lambda rank=rank: work(SharingRank(rank))) for rank in peers]
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert codes == [0] * size, f"exit codes of the ranks: {codes}"


def fork(work: Callable[[], None]) -> int:
    """The id of a process that does `work` and ends, with code 0 if that raised nothing."""
    child = os.fork()
    if child:
        return child
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_MOST_SECONDS)
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
