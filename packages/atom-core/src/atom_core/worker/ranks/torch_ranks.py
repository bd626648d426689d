"""`TorchRanks`: ranks over torch.distributed, by gloo on CPUs and by NCCL (RCCL) on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from atom_core.worker.devices.factory import device_of
from atom_core.worker.devices.protocol import WorkerDevice
from atom_core.worker.ranks.meeting import Meeting, Place, StoreFile
from atom_core.worker.ranks.protocol import MeetingRanks
from atom_kernels.protocols import SINGLE_RANK, Collectives, NoPeers, Peers
from atom_models.groups import Groups, Stage


class TorchRanks:
    """`WorkerRanks` of this process; the process can join ranks once.

    Args:
        meeting: where the ranks are, and where they find each other.
        rank: this process's number.
        device: "cpu" or "cuda".
    """

    def __init__(self, meeting: Meeting, rank: int, *, device: str) -> None:
        self.rank, self.size = rank, meeting.size
        own, engines = device_of(device), meeting.engines
        own.take(meeting.places[rank].device)
        self._number, self._count = engines.number * self.size + rank, engines.count * self.size
        store, num_stages = _open(meeting, rank), meeting.num_stages
        dist.init_process_group(own.collectives, store=store, rank=self._number, world_size=self._count)
        self._width = self.size // num_stages
        stage = Stage(rank // self._width, num_stages)
        self._of_engine = _neighbors(self._number, self.size, self._count)
        tensor = self._of_engine if num_stages == 1 else _neighbors(self._number, self._width, self._count)
        self.groups = Groups(tensor, stage)
        if engines.count > 1:
            everyone = TensorRanks(None, self._number, self._count)
            self.groups = replace(self.groups, expert=everyone, data=_alike(self._number, self.size, self._count))
        self._device = device
        self._context_ranks: dict[int, Collectives] = {1: SINGLE_RANK, self._width: self.groups.tensor}
        self._given: tuple[Any, torch.Tensor] | None = None
        # NCCL connects at the first call, which must not happen while a graph is captured.
        something = torch.zeros(1, device=device)
        tensor_ranks = self.groups.tensor
        tensor_ranks.all_reduce(something)
        self.groups.data.all_reduce(something)
        if isinstance(tensor_ranks, TensorRanks):
            first = rank - tensor_ranks.rank
            tensor_ranks.share_memory(own, meeting.places[first : first + self._width], self.smallest)
        if not stage.is_first:
            self.take(something)
        if not stage.is_last:
            self.give(something)

    def sharing_context(self, size: int) -> Groups:
        if size not in self._context_ranks:
            self._context_ranks[size] = _neighbors(self._number, size, self._count)
            self._context_ranks[size].all_reduce(torch.zeros(1, device=self._device))
        return replace(self.groups, context=self._context_ranks[size])

    def smallest(self, number: int) -> int:
        return min(self._of_engine.all_gather(torch.tensor([number])).tolist())

    def give(self, x: torch.Tensor) -> None:
        """See `WorkerRanks`. One tensor is on its way at most: the one before it must have arrived."""
        # The device may write anew what a graph gave, long before it is sent.
        x = x.clone() if x.is_cuda else x.contiguous()
        if self._given is not None:
            self._given[0].wait()
        self._given = dist.isend(x, self.rank + self._width), x

    def take(self, into: torch.Tensor) -> None:
        dist.recv(into, self.rank - self._width)

    def is_loss(self, error: BaseException) -> bool:
        return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))


class TensorRanks:
    """`UnevenCollectives` of the ranks of one group.

    Args:
        group: None is that of all ranks.
        rank, size: this process's number in it, and how many it has.

    Attributes:
        name: what torch.distributed calls the group.
        peers: memory that the ranks share, or why there is none.
    """

    def __init__(self, group: Any, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._group: Any = dist.group.WORLD if group is None else group
        self.name: str = self._group.group_name
        self.peers: Peers = NoPeers("these ranks have not met")

    def share_memory(self, device: WorkerDevice, places: tuple[Place, ...], smallest: Callable[[int], int]) -> None:
        """Meet the other ranks' memory, if all ranks of all groups can.

        Args:
            places: where each rank is.
        """
        self.peers = device.share_memory(
            MeetingRanks(self.rank, self.size, places, self.name, smallest, self.all_gather)
        )

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, of x's shape and dtype; x, which no caller needs afterwards, may be overwritten."""
        x = x.contiguous()
        if torch.compiler.is_compiling():
            # What the compiler has in its graphs. Outside of them it would cost a copy, and another stream on a GPU.
            return self._wait(torch.ops._c10d_functional.all_reduce(x, "sum", self.name))
        dist.all_reduce(x, group=self._group)
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' tensors, which have one shape, side by side along `dim`."""
        parts = self._wait(torch.ops._c10d_functional.all_gather_into_tensor(x.contiguous(), self.size, self.name))
        return torch.cat(parts.chunk(self.size), dim)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks of ``[size * n, ...]``, of which this rank gets its n rows."""
        start = torch.ops._c10d_functional.reduce_scatter_tensor
        return self._wait(start(x.contiguous(), "sum", self.size, self.name))

    def all_to_all(self, x: torch.Tensor, give: Sequence[int], take: Sequence[int]) -> torch.Tensor:
        """The rows that the ranks have for this one; runs of `x` are for the ranks, in their order."""
        start = torch.ops._c10d_functional.all_to_all_single
        return self._wait(start(x.contiguous(), list(take), list(give), self.name))

    def __str__(self) -> str:
        return str(self.size)

    def _wait(self, started: torch.Tensor) -> torch.Tensor:
        return torch.ops._c10d_functional.wait_tensor(started)


def _open(meeting: Meeting, rank: int) -> Any:
    """The store of torch.distributed in which the ranks find each other."""
    store = meeting.store
    if isinstance(store, StoreFile):
        size = meeting.size * meeting.engines.count
        return dist.FileStore(store.path, size)  # pyright: ignore[reportPrivateImportUsage]
    # Left to itself the store would listen on every network of the host.
    listening = {"is_master": True, "master_listen_fd": store.descriptor} if rank == 0 else {}
    return dist.TCPStore(store.host, store.port, meeting.size, **listening)  # pyright: ignore[reportPrivateImportUsage]


def _neighbors(rank: int, width: int, size: int) -> Collectives:
    """This one's run of `width` ranks, of all `size`. All ranks make all groups, as torch.distributed wants it."""
    if width == size:
        return TensorRanks(None, rank, width)
    if width == 1:
        return SINGLE_RANK
    groups = [dist.new_group([*range(first, first + width)]) for first in range(0, size, width)]
    return TensorRanks(groups[rank // width], rank % width, width)


def _alike(rank: int, width: int, size: int) -> TensorRanks:
    """The ranks with the same place as this one in other runs of `width` ranks. All ranks make all groups."""
    if width == 1:
        return TensorRanks(None, rank, size)
    groups = [dist.new_group([*range(first, size, width)]) for first in range(width)]
    return TensorRanks(groups[rank % width], rank // width, size // width)
