"""The operator's config, with the fields and defaults of MORI's."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch


class EpDispatchCombineKernelType(enum.Enum):
    """Which kernels serve: within a node, or between nodes."""

    IntraNode = 0
    InterNode = 1
    InterNodeV1 = 2
    InterNodeV1LL = 3
    AsyncLL = 4


@dataclass
class EpDispatchCombineConfig:
    """See MORI. Only the first ten have no defaults."""

    data_type: torch.dtype
    rank: int
    world_size: int
    hidden_dim: int
    scale_dim: int
    scale_type_size: int
    max_token_type_size: int
    max_num_inp_token_per_rank: int
    num_experts_per_rank: int
    num_experts_per_token: int
    warp_num_per_block: int = 8
    block_num: int = 80
    use_external_inp_buf: bool = True
    kernel_type: EpDispatchCombineKernelType = EpDispatchCombineKernelType.IntraNode
    gpu_per_node: int = 8
    rdma_block_num: int = 0
    num_qp_per_pe: int = 1
    quant_type: str = "none"

    @property
    def max_num_tokens_to_recv(self) -> int:
        """Rows that a rank has room for: all that there can be."""
        return self.world_size * self.max_num_inp_token_per_rank
