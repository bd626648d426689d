"""vLLM's groups as the collectives that our layers ask for."""

# pyright: reportMissingImports=false
from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import torch

from atom_kernels.protocols import SINGLE_RANK, Collectives, NoPeers, UnevenCollectives
from atom_models.groups import Groups
from atom_vllm.parallel import exchanges_rows, spreads_experts


class VllmCollectives:
    """`Collectives` over a vLLM group coordinator, which chooses among all-reduces by itself.

    None goes from one rank to some of the others: mixtures gather their rows here.
    """

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


def groups_of(vllm_config: Any) -> Groups:
    """The ranks beside this process, by what vLLM has them share; it has set up its groups."""
    from vllm.distributed import get_dp_group, get_ep_group, get_tp_group

    groups = Groups(_collectives(get_tp_group()), context=context_parallel())
    if exchanges_rows(vllm_config):
        return replace(groups, expert=_collectives(get_ep_group()), data=_collectives(get_dp_group()))
    return groups.spreading_experts() if spreads_experts(vllm_config) else groups


def context_parallel() -> Collectives:
    """The tensor-parallel ranks over which vLLM spreads the tokens of a request: neighbors, as ours are."""
    from vllm.distributed import get_dcp_group

    return _collectives(get_dcp_group())


def _collectives(group: Any) -> UnevenCollectives:
    return SINGLE_RANK if group.world_size == 1 else cast("UnevenCollectives", VllmCollectives(group))
