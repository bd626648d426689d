"""Attention of chunks of prompts over pages in Triton: tiles of queries of one head against tiles of keys.

Shapes: T tokens, R requests, H query heads, D head_dim; M and N: queries and keys of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton_tile import NOTHING, attend_tile, finish_rows, load_block_ids, visible_keys


# What changes from step to step must not make Triton compile again.
@triton.jit(
    do_not_specialize=["num_requests", "table_stride"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "block_table_ptr"],
)
def prefill_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, sinks_ptr, out_ptr, query_start_loc_ptr, seq_lens_ptr, block_table_ptr,
    scale, cap, q_stride, block_stride, token_stride, head_stride, table_stride, num_requests,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """One program a query head and tile of at most M queries of one request.

    Tiles are numbered through the batch, leaving room for one unfinished tile a request, so that a grid is known from
    the numbers of tokens and requests alone.
    """
    head = tl.program_id(0)
    tile = tl.program_id(1)
    # The request of a tile: the last whose first tile is not past it.
    requests = tl.arange(0, BLOCK_R)
    base = tl.load(query_start_loc_ptr)
    starts = tl.load(query_start_loc_ptr + requests, mask=requests < num_requests, other=0) - base
    first_tiles = starts // BLOCK_M + requests
    request = tl.sum(((first_tiles <= tile) & (requests < num_requests)).to(tl.int32), axis=0) - 1
    start = tl.load(query_start_loc_ptr + request)
    stop = tl.load(query_start_loc_ptr + request + 1)
    first_query = (tile - (start - base) // BLOCK_M - request) * BLOCK_M
    num_queries = stop - start
    if first_query < num_queries:
        length = tl.load(seq_lens_ptr + request)
        table = block_table_ptr + request.to(tl.int64) * table_stride
        rows = first_query + tl.arange(0, BLOCK_M)
        columns = tl.arange(0, BLOCK_D)
        tokens = (start + rows).to(tl.int64)
        q_inside = (rows < num_queries)[:, None] & (columns < HEAD_DIM)[None, :]
        q = tl.load(q_ptr + tokens[:, None] * q_stride + head * HEAD_DIM + columns[None, :], mask=q_inside, other=0.0)
        if UPCAST:
            q = q.to(tl.float32)
        positions = length - num_queries + rows
        end = tl.minimum(length - num_queries + first_query + BLOCK_M, length)
        begin, aligned = visible_keys(num_queries - first_query, length, WINDOW, BLOCK_N)
        k_head_ptr = k_cache_ptr + head // GROUP * head_stride
        v_head_ptr = v_cache_ptr + head // GROUP * head_stride
        best = tl.full([BLOCK_M], NOTHING, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        # Keys up to the first query are seen by all rows, unless there is a window.
        clear = aligned
        block_ids = load_block_ids(table, aligned, begin, end, BLOCK_SIZE, WINDOW, BLOCK_N)
        if WINDOW == 0:
            clear = tl.maximum(length - num_queries + first_query + 1, 0) // BLOCK_N * BLOCK_N
            for at in range(aligned, clear, BLOCK_N):
                next_ids = load_block_ids(table, at + BLOCK_N, begin, end, BLOCK_SIZE, WINDOW, BLOCK_N)
                best, total, sums = attend_tile(
                    q, k_head_ptr, v_head_ptr, block_ids, at, begin, end, positions, best, total, sums,
                    scale, cap, block_stride, token_stride,
                    HEAD_DIM, BLOCK_SIZE, WINDOW, SOFT_CAP, PRECISION, UPCAST, False, BLOCK_N, BLOCK_D,
                    q_ptr.dtype.element_ty,
                )  # fmt: skip
                block_ids = next_ids
        for at in range(clear, end, BLOCK_N):
            next_ids = load_block_ids(table, at + BLOCK_N, begin, end, BLOCK_SIZE, WINDOW, BLOCK_N)
            best, total, sums = attend_tile(
                q, k_head_ptr, v_head_ptr, block_ids, at, begin, end, positions, best, total, sums,
                scale, cap, block_stride, token_stride,
                HEAD_DIM, BLOCK_SIZE, WINDOW, SOFT_CAP, PRECISION, UPCAST, True, BLOCK_N, BLOCK_D,
                q_ptr.dtype.element_ty,
            )  # fmt: skip
            block_ids = next_ids
        out = finish_rows(best, total, sums, sinks_ptr, head + tl.zeros([BLOCK_M], tl.int32), rows < num_queries)
        out_at = tokens[:, None] * (NUM_HEADS * HEAD_DIM) + head * HEAD_DIM + columns[None, :]
        tl.store(out_ptr + out_at, out.to(out_ptr.dtype.element_ty), mask=q_inside)
