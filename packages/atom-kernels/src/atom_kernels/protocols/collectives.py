"""`Collectives`: what layers ask of the ranks beside them; `SINGLE_RANK` is the identity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class Carrier(Protocol):
    """Copies pieces to another rank, in order and beside the kernels."""

    def carry(self, part: torch.Tensor, slot: int, number: int) -> None:
        """Copies a contiguous part, once kernels so far have written it, and its number behind it."""
        ...

    def settle(self) -> None:
        """Lets kernels from now on wait until all parts are copied, whose memory may then be used anew."""
        ...


@dataclass(eq=False)
class PieceMemory:
    """Slots in which two ranks leave pieces of long tensors for each other.

    Attributes:
        arrived: uint8 ``[slots, bytes]`` of this rank, which the other one writes.
        numbers: int32 ``[slots]`` of this rank, zeros at first: the number of the piece that has arrived in each slot.
        carrier: copies to the slots and numbers of the other rank.
        num_sent: pieces so far.
        open: what was sent last, until this rank has added what came for it; its `close` does so.
    """

    arrived: torch.Tensor
    numbers: torch.Tensor
    carrier: Carrier
    num_sent: int = 0
    open: Any = None


@dataclass(frozen=True, eq=False)
class PeerMemory:
    """Buffers of all ranks, each of which every rank reads and writes directly.

    `atom_kernels.reduce.buffers` says what lies in them.

    Attributes:
        rank, size: this rank, and how many there are.
        addresses: int64 ``[size]`` on the device, where this process finds the buffer of each rank.
        calls: int32 ``[2]`` on the device, zeros at first: calls so far, and the programs of this call that read that.
        max_bytes: the size of the largest tensor that ranks may sum in them.
        owners: what keeps the memory.
        pieces: where two ranks exchange what is larger; None where they do not.
    """

    rank: int
    size: int
    addresses: torch.Tensor
    calls: torch.Tensor
    max_bytes: int
    owners: tuple[Any, ...] = ()
    pieces: PieceMemory | None = None


@dataclass(frozen=True, eq=False)
class AiterMemory:
    """Buffers of all ranks, which AITER's kernels find by the handles that the ranks gave each other.

    Attributes:
        rank, size: this rank, and how many there are.
        group: AITER's number of what it keeps about them.
        buffer: the address of this rank's own buffer, where AITER copies what is summed.
        max_bytes: the size of the largest tensor that ranks may sum in them.
        owners: what keeps the memory.
    """

    rank: int
    size: int
    group: int
    buffer: int
    max_bytes: int
    owners: tuple[Any, ...] = ()


@dataclass(frozen=True, eq=False)
class HostMemory:
    """Memory of one host that all ranks have mapped, for the C kernel that sums over them.

    `atom_kernels.reduce.host_memory` says what lies in it.

    Attributes:
        rank, size: this rank, and how many there are.
        memory: uint8, zeros at first.
        max_bytes: the size of the largest tensor that ranks sum in one go.
    """

    rank: int
    size: int
    memory: torch.Tensor
    max_bytes: int


@dataclass(frozen=True)
class NoPeers:
    """Ranks do not see each other's memory, and why."""

    reason: str


Peers = PeerMemory | AiterMemory | HostMemory | NoPeers


class Collectives(Protocol):
    """Collective operations of one parallel group; every rank of the group calls them in the same order.

    They may overwrite what they are given.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def peers(self) -> Peers:
        """Memory over which kernels of ours, or AITER's, exchange instead. It serves one stream at a time."""
        ...

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor: ...
    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor: ...
    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of ``[size * n, ...]``, of which each rank gets its own n rows."""
        ...


class UnevenCollectives(Collectives, Protocol):
    """Collectives of ranks that have unequal numbers of rows for each other."""

    @property
    def name(self) -> str:
        """What torch.distributed calls the group, for libraries that join its ranks by themselves."""
        ...

    def all_to_all(self, x: torch.Tensor, give: Sequence[int], take: Sequence[int]) -> torch.Tensor:
        """The rows that the ranks have for this one, in the order of the ranks.

        Args:
            x: ``[sum(give), ...]``, the rows for each rank, one run after the other.
            give, take: the length of the run for each rank, and of the one that comes from it. One rank's `take` is
                what the others give it.
        """
        ...


class SingleRank:
    """A group of one: every collective returns its input."""

    rank = 0
    size = 1
    name = ""
    peers: Peers = NoPeers("these ranks exchange by their own library alone")

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return x

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_to_all(self, x: torch.Tensor, give: Sequence[int], take: Sequence[int]) -> torch.Tensor:
        return x

    def __str__(self) -> str:
        return str(self.size)


SINGLE_RANK = SingleRank()
