"""`EpDispatchCombineOp`: what MORI's intranode kernels do, and errors where they would go wrong without a word."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from mori.ops.buffers import Buffers
from mori.ops.config import EpDispatchCombineConfig, EpDispatchCombineKernelType
from mori.process import here


class _Given(NamedTuple):
    """What a rank dispatches."""

    rows: torch.Tensor
    weights: torch.Tensor
    ids: torch.Tensor


class EpDispatchCombineOp:
    """One operator of every rank; `dispatch` and `combine` take turns, on all ranks alike."""

    def __init__(self, config: EpDispatchCombineConfig) -> None:
        if not here.has_joined:
            raise RuntimeError("shmem_torch_process_group_init was not called")
        if (config.rank, config.world_size) != (here.rank, here.size):
            raise ValueError(f"rank {config.rank} of {config.world_size} is rank {here.rank} of {here.size}")
        if config.kernel_type is not EpDispatchCombineKernelType.IntraNode or here.size > config.gpu_per_node:
            raise ValueError("only kernels within a node are emulated")
        if config.max_token_type_size < config.data_type.itemsize:
            raise ValueError("max_token_type_size is less than a number of data_type has")
        if config.scale_dim or config.scale_type_size or config.quant_type != "none":
            raise ValueError("rows with scales are not emulated")
        if any(replace(other, rank=config.rank) != config for other in here.all_give(config)):
            raise ValueError("ranks made operators of different configs")
        self.config = config
        self._buffers = Buffers(config)
        self._order = torch.Generator().manual_seed(config.rank)
        self._ids: torch.Tensor | None = None  # of the rows that are away
        self._sources: list[tuple[int, int]] = []  # by the place of a row that came: its rank and its number there

    def dispatch(
        self,
        input: torch.Tensor,
        weights: torch.Tensor,
        scales: torch.Tensor | None,
        indices: torch.Tensor,
        block_num: int = -1,
        rdma_block_num: int = -1,
        warp_per_block: int = -1,
        call_local_expert_count: bool = False,
        *,
        routing: Any = None,
        return_routing: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, None, torch.Tensor, torch.Tensor]:
        """Rows, weights, no scales, ids, and how many came: all of fixed size, with anything behind what came.

        A row goes once to each rank that owns one of its ids. Which place it gets there, atomic additions decide.
        """
        self._check_given(input, weights, scales, indices)
        if self._ids is not None:
            raise RuntimeError("rows are dispatched before the last ones were combined: their count would be added to")
        self._ids = indices.clone()
        everyone = here.all_give(_Given(input.clone(), weights.clone(), indices.clone()))
        coming = [
            (rank, row)
            for rank, given in enumerate(everyone)
            for row, ids in enumerate(given.ids.tolist())
            if any(one // self.config.num_experts_per_rank == self.config.rank for one in ids)
        ]
        self._sources = [coming[place] for place in torch.randperm(len(coming), generator=self._order).tolist()]
        found = [[part[row] for part in everyone[rank]] for rank, row in self._sources]
        return self._buffers.filled(found)

    def combine(
        self,
        input: torch.Tensor,
        weights: torch.Tensor | None,
        indices: torch.Tensor,
        block_num: int = -1,
        rdma_block_num: int = -1,
        warp_per_block: int = -1,
        use_external_inp_buf: int = -1,
        call_reset: bool = False,
        *,
        routing: Any = None,
    ) -> tuple[torch.Tensor, None]:
        """The sum of what the ranks that had a row have in its place now, in float32, rounded once."""
        config = self.config
        if self._ids is None or not torch.equal(indices, self._ids):
            raise ValueError("indices are not this rank's own, as they were dispatched")
        if weights is not None:
            raise ValueError("sums of weights are not emulated")
        _check("input", input, (None, config.hidden_dim), config.data_type)
        if input.dtype not in (torch.float32, torch.bfloat16):
            raise KeyError(input.dtype)
        if len(input) < len(self._sources):
            raise ValueError(f"{len(self._sources)} rows came and {len(input)} go back: others would be read too")
        parts: list[list[torch.Tensor]] = [[] for _ in range(len(indices))]
        for sources, rows in here.all_give((self._sources, input.clone())):
            for place, (rank, row) in enumerate(sources):
                if rank == config.rank:
                    parts[row].append(rows[place].float())
        self._ids, self._sources = None, []
        return self._buffers.summed([torch.stack(of_row).sum(0) for of_row in parts]), None

    def _check_given(
        self, rows: torch.Tensor, weights: torch.Tensor, scales: torch.Tensor | None, ids: torch.Tensor
    ) -> None:
        config = self.config
        _check("input", rows, (None, config.hidden_dim), config.data_type)
        _check("weights", weights, (len(rows), config.num_experts_per_token), torch.float32)
        _check("indices", ids, (len(rows), config.num_experts_per_token), torch.int32)
        if scales is not None:
            raise ValueError("scales were given, and scale_dim is 0")
        if len(rows) > config.max_num_inp_token_per_rank:
            raise ValueError(f"{len(rows)} rows would be written behind buffers of {config.max_num_inp_token_per_rank}")
        num_ids = config.num_experts_per_rank * config.world_size
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_ids:
            raise ValueError(f"ids reach from {int(ids.min())} to {int(ids.max())}, and {num_ids} are owned")


def _check(name: str, x: torch.Tensor, shape: tuple[int | None, int], dtype: torch.dtype) -> None:
    """Kernels get addresses alone, so that they would read another type or order without a word."""
    is_of_shape = x.dim() == 2 and all(size in (None, found) for size, found in zip(shape, x.shape, strict=True))
    if x.dtype != dtype or not x.is_contiguous() or not is_of_shape:
        raise TypeError(f"{name} is {x.dtype} {list(x.shape)}, which must be contiguous {dtype} {list(shape)}")
