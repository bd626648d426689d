"""What lies in the buffer that a rank lets the others write and read, all of it twice, for calls that take turns.

A call counts itself. Even calls use one half of everything and odd ones the other: a rank begins a call once it has
heard from all the others in the call before, so nobody still reads what was used two calls ago.

- Flags, int32 ``[2, 2 phases, programs, ranks]``: the number of the call, written by the rank that is the last index.
- Packets, int64 ``[2, ranks, words]``: 32 bits that the rank sent, with the number of the call above them.
- Parts, ``[2, max_bytes]``: what the rank itself has to sum.
- Sums, ``[2, max_bytes]``: what others have summed for it.
- Between two ranks, slots ``[16, 2 max_bytes]`` and numbers, int32 ``[16]``: see `PieceMemory`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from atom_kernels.protocols import PeerMemory

# Programs that one GPU certainly runs side by side: they wait for each other's.
MAX_PROGRAMS = 128
# Numbers of ranks that kernels are written for.
GROUP_SIZES = (2, 4, 8)
# The largest tensor that packets carry, and the largest that any kernel of ours sums.
PACKETS_BYTES = 512 << 10
MAX_BYTES = 8 << 20
# A row that is normed lies in the registers of one program.
MAX_NORMED = 16384
# Slots for pieces: twice as many as a sum has pieces, since a rank may still read those of the sum before.
NUM_SLOTS = 16


@dataclass(frozen=True)
class BufferLayout:
    """Offsets in bytes of a buffer among `size` ranks, for tensors of up to `max_bytes`."""

    size: int
    max_bytes: int

    @property
    def max_words(self) -> int:
        """How many words of 32 bits a rank may send in packets."""
        return min(self.max_bytes, PACKETS_BYTES) // 4

    @property
    def packets(self) -> int:
        return 2 * 2 * MAX_PROGRAMS * self.size * 4

    @property
    def parts(self) -> int:
        return self.packets + 2 * self.size * self.max_words * 8

    @property
    def sums(self) -> int:
        return self.parts + 2 * self.max_bytes

    @property
    def slots(self) -> int:
        return self.sums + 2 * self.max_bytes

    @property
    def slot_bytes(self) -> int:
        """The size of the largest piece; more than two ranks exchange none."""
        return 2 * self.max_bytes if self.size == 2 else 0

    @property
    def numbers(self) -> int:
        return self.slots + NUM_SLOTS * self.slot_bytes

    @property
    def num_bytes(self) -> int:
        return self.numbers + NUM_SLOTS * 4


def layout_of(peers: PeerMemory) -> BufferLayout:
    """How the buffers of these ranks are laid out."""
    return BufferLayout(peers.size, peers.max_bytes)


def peers_over(buffers: list[torch.Tensor], rank: int, max_bytes: int) -> PeerMemory:
    """Peers whose buffers are zeroed tensors that this process holds, such as those of a test or of one rank alone."""
    device = buffers[rank].device
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.int64, device=device)
    calls = torch.zeros(2, dtype=torch.int32, device=device)
    return PeerMemory(rank, len(buffers), addresses, calls, max_bytes, tuple(buffers))


def slots_in(buffer: torch.Tensor, max_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots, uint8, and numbers, int32, in the buffer of one of two ranks, which is uint8."""
    layout = BufferLayout(2, max_bytes)
    slots = buffer[layout.slots : layout.numbers].view(NUM_SLOTS, layout.slot_bytes)
    return slots, buffer[layout.numbers : layout.num_bytes].view(torch.int32)
