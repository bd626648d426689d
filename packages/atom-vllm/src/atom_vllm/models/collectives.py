"""vLLM's groups as the collectives that our layers ask for."""

# pyright: reportMissingImports=false
from __future__ import annotations

from typing import Any

import torch

from atom_kernels.protocols import SINGLE_RANK, Collectives, NoPeers


class VllmCollectives:
    """`Collectives` over a vLLM group coordinator, which chooses among all-reduces by itself."""

    peers = NoPeers("vLLM's group has all-reduces of its own")

    def __init__(self, group: Any) -> None:
        self._group = group
        self.rank: int = group.rank_in_group
        self.size: int = group.world_size

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.all_reduce(x)

    def all_gather(self, x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return self._group.all_gather(x, dim)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        return self._group.reduce_scatter(x, 0)


def tensor_parallel() -> Collectives:
    """The collectives of the tensor-parallel group that vLLM has set up in this process."""
    from vllm.distributed import get_tp_group

    return _collectives(get_tp_group())


def context_parallel() -> Collectives:
    """The ranks of that group over which vLLM spreads the tokens of a request: neighbors, as ours are."""
    from vllm.distributed import get_dcp_group

    return _collectives(get_dcp_group())


def _collectives(group: Any) -> Collectives:
    return SINGLE_RANK if group.world_size == 1 else VllmCollectives(group)
