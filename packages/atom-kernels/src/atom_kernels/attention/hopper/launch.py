"""Launches of `hopper_prefill_kernel`: what it can serve, and a paged cache as the rows that TMA copies from.

Shapes: H query heads, K key heads, D head_dim.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from triton.experimental.gluon.language import NVMMASharedLayout
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from atom_kernels.attention.hopper.configs import HopperConfig, heads_of_a_run
from atom_kernels.attention.hopper.prefill import hopper_prefill_kernel
from atom_kernels.triton.launch import launch

# Elements of 16 bits that a copy takes of each row: as wide as shared memory is swizzled, 128 bytes.
_CHUNK = 64
# Warpgroups that multiply, and query rows of each.
_PARTS, _ROWS = 2, 64
# Registers of a multiprocessor: all warpgroups begin with equally many, the one that loads included.
_REGISTERS = 65536
_QUERIES = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=3)
_ROWS_OF_CACHE = NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)


@dataclass(frozen=True)
class CacheRows:
    """A paged cache seen as rows of one length: block b, slot s and head h begin in row ``b * block_rows + s +
    h * head_rows`` at column ``h * head_columns``."""

    num_rows: int
    row_stride: int
    num_columns: int
    block_rows: int
    head_rows: int
    head_columns: int

    def describe(self, cache: torch.Tensor, page: int) -> TensorDescriptor:
        """The descriptor for copies of `page` rows."""
        shape = [self.num_rows, self.num_columns]
        return TensorDescriptor(cache, shape, [self.row_stride, 1], [page, _CHUNK], _ROWS_OF_CACHE)


def cache_rows(cache: torch.Tensor) -> CacheRows | None:
    """None where blocks and heads are not a whole number of rows apart, or TMA could not step over them.

    Args:
        cache: ``[num_blocks, block_size, K, D]``, of any strides.
    """
    num_blocks, block_size, num_heads, head_dim = cache.shape
    block, row, head, element = cache.stride()
    if num_blocks == 1:
        block = row * block_size
    if num_heads == 1:
        head = 0
    head_rows, head_columns = (0, head) if head < row else (head // row, head % row)
    columns = head_columns * (num_heads - 1) + head_dim
    aligned = row % 8 == 0 and cache.data_ptr() % 16 == 0 and head_columns % 8 == 0
    if element != 1 or block % row or columns > row or not aligned or (head >= row and head_columns):
        return None
    num_rows = (num_blocks - 1) * (block // row) + (num_heads - 1) * head_rows + block_size
    return CacheRows(num_rows, row, columns, block // row, head_rows, head_columns)


def rows_of_both(q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor) -> CacheRows | None:
    """Rows of the caches, where these are alike and TMA can copy from them and from the queries ``[T, H, D]``."""
    rows = cache_rows(k_cache)
    aligned = q.data_ptr() % 16 == 0 and q.stride(0) % 8 == 0
    return rows if aligned and rows == cache_rows(v_cache) else None


def launch_prefill(
    tensors: tuple[Any, ...],
    rows: CacheRows,
    steps: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    counter: torch.Tensor,
    config: HopperConfig,
    *,
    num_tokens: int,
    band: int,
    scale: float,
) -> None:
    """Attention of the prompts of a step.

    Args:
        tensors: queries, keys' and values' cache, sinks or None, outputs, as `PagedKernels.attend` has them.
        rows: both caches.
        steps: starts of queries ``[R + 1]``, lengths ``[R]`` and block tables of the R prompts.
        counter: int32 ``[1]``, zero before and after.
        num_tokens: no fewer than the prompts have.
        band: key heads whose keys and values stay in the L2 cache together; it divides their number.
        scale: what scores are multiplied by, for powers of 2.
    """
    q, k_cache, v_cache, sinks, out = tensors
    query_start_loc, seq_lens, block_table = steps
    _, num_heads, head_dim = q.shape
    _, block_size, num_kv_heads, _ = k_cache.shape
    group = heads_of_a_run(num_heads // num_kv_heads)
    num_runs = num_heads // group
    runs = num_runs // num_kv_heads
    page = min(block_size, config.block_n)
    num_requests = seq_lens.shape[0]
    num_tiles = num_tokens // (_PARTS * _ROWS // group) + num_requests
    num_items = num_tiles * num_runs
    launch(
        hopper_prefill_kernel, (min(num_items, num_processors(q.device)),),
        TensorDescriptor(q, list(q.shape), list(q.stride()), [_ROWS // group, group, _CHUNK], _QUERIES),
        rows.describe(k_cache, page), rows.describe(v_cache, page), sinks, out,
        query_start_loc, seq_lens, block_table, counter,
        scale, block_table.stride(0), num_requests, num_tiles, runs * band, num_items, rows.num_rows,
        NUM_HEADS=num_heads,
        GROUP=group,
        RUNS=runs,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        BLOCK_ROWS=rows.block_rows,
        HEAD_ROWS=rows.head_rows,
        HEAD_COLUMNS=rows.head_columns,
        PAGE=page,
        BLOCK_N=config.block_n,
        STAGES=config.stages,
        PART_REGISTERS=config.part_registers,
        LOAD_REGISTERS=config.load_registers,
        num_warps=4,
        maxnreg=_REGISTERS // (128 * (_PARTS + 1)) // 8 * 8,
    )  # fmt: skip


def num_processors(device: torch.device) -> int:
    """Programs that run at a time: each needs a multiprocessor for itself."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
