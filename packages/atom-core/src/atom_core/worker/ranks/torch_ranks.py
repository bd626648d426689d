"""`TorchRanks`: ranks over torch.distributed, by gloo on CPUs and by NCCL (RCCL) on GPUs."""

from __future__ import annotations

import torch
import torch.distributed as dist

from atom_core.worker.devices.factory import device_of
from atom_core.worker.ranks.peers import share_memory


class TorchRanks:
    """`WorkerRanks` of this process; the process can join ranks once.

    Args:
        store_path: a file that all ranks, and nobody else, can open: they find each other in it.
        rank, size: this process's number, and how many there are.
        device: "cpu" or "cuda".
        first_device: on GPUs, the number of rank 0's; the others have those after it.
    """

    def __init__(self, store_path: str, rank: int, size: int, *, device: str, first_device: int = 0) -> None:
        self.rank, self.size = rank, size
        own = device_of(device)
        own.take(first_device + rank)
        store = dist.FileStore(store_path, size)  # pyright: ignore[reportPrivateImportUsage]
        dist.init_process_group(own.collectives, store=store, rank=rank, world_size=size)
        self._name = dist.group.WORLD.group_name  # type: ignore[union-attr]
        # NCCL connects at the first call, which must not happen while a graph is captured.
        self.all_reduce(torch.zeros(1, device=device))
        devices = tuple(range(first_device, first_device + size))
        self.peers = share_memory(rank, size, device=device, devices=devices, group=self._name, smallest=self.smallest)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum over ranks, of x's shape and dtype; x, which no caller needs afterwards, may be overwritten."""
        x = x.contiguous()
        if torch.compiler.is_compiling():
            # What the compiler has in its graphs. Outside of them it would cost a copy, and another stream on a GPU.
            return self._wait(torch.ops._c10d_functional.all_reduce(x, "sum", self._name))
        dist.all_reduce(x)
        return x

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        """The ranks' tensors, which have one shape, side by side along `dim`."""
        parts = self._wait(torch.ops._c10d_functional.all_gather_into_tensor(x.contiguous(), self.size, self._name))
        return torch.cat(parts.chunk(self.size), dim)

    def smallest(self, number: int) -> int:
        agreed = torch.tensor([number])
        dist.all_reduce(agreed, dist.ReduceOp.MIN)
        return int(agreed)

    def is_loss(self, error: BaseException) -> bool:
        return isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in str(error))

    def __str__(self) -> str:
        return str(self.size)

    def _wait(self, started: torch.Tensor) -> torch.Tensor:
        return torch.ops._c10d_functional.wait_tensor(started)
