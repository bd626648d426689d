"""Attention of chunks of prompts over pages in Triton: tiles of queries of one head against tiles of keys.

Shapes: T tokens, R requests, H query heads, D head_dim; M and N: queries and keys of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl


# What changes from step to step must not make Triton compile again.
@triton.jit(
    do_not_specialize=["num_requests", "table_stride"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "block_table_ptr"],
)
def prefill_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, sinks_ptr, out_ptr, query_start_loc_ptr, seq_lens_ptr, block_table_ptr,
    scale, soft_cap, q_stride, block_stride, token_stride, head_stride, table_stride, num_requests,
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
        first_position = length - num_queries + first_query
        end = tl.minimum(first_position + BLOCK_M, length)
        begin = 0
        if WINDOW > 0:
            begin = tl.maximum(first_position - WINDOW + 1, 0)
        best = tl.full([BLOCK_M], float("-inf"), tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        if sinks_ptr is not None:
            best = tl.zeros([BLOCK_M], tl.float32) + tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
            total = tl.zeros([BLOCK_M], tl.float32) + 1.0
        sums = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
        # Keys up to the first query are seen by all rows, unless there is a window.
        clear = begin
        if WINDOW == 0:
            clear = (first_position + 1) // BLOCK_N * BLOCK_N
            for at in range(begin, clear, BLOCK_N):
                best, total, sums = _attend_tile(
                    q, k_cache_ptr, v_cache_ptr, table, at, end, positions, best, total, sums,
                    scale, soft_cap, head // GROUP * head_stride, block_stride, token_stride,
                    HEAD_DIM, BLOCK_SIZE, WINDOW, SOFT_CAP, PRECISION, UPCAST, False, BLOCK_N, BLOCK_D,
                    q_ptr.dtype.element_ty,
                )  # fmt: skip
        for at in range(clear, end, BLOCK_N):
            best, total, sums = _attend_tile(
                q, k_cache_ptr, v_cache_ptr, table, at, end, positions, best, total, sums,
                scale, soft_cap, head // GROUP * head_stride, block_stride, token_stride,
                HEAD_DIM, BLOCK_SIZE, WINDOW, SOFT_CAP, PRECISION, UPCAST, True, BLOCK_N, BLOCK_D,
                q_ptr.dtype.element_ty,
            )  # fmt: skip
        out = tokens[:, None] * (NUM_HEADS * HEAD_DIM) + head * HEAD_DIM + columns[None, :]
        tl.store(out_ptr + out, (sums / total[:, None]).to(out_ptr.dtype.element_ty), mask=q_inside)


@triton.jit
def _attend_tile(
    q, k_cache_ptr, v_cache_ptr, table, at, end, positions, best, total, sums,
    scale, soft_cap, head_offset, block_stride, token_stride,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr, MASKED: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    DTYPE: tl.constexpr,
):  # fmt: skip
    """Keys ``at:at + N`` folded into the running maximum, sum and output of each query; MASKED: not all are seen."""
    columns = tl.arange(0, BLOCK_D)
    n = at + tl.arange(0, BLOCK_N)
    if MASKED:
        block = tl.load(table + n // BLOCK_SIZE, mask=n < end, other=0).to(tl.int64)
    else:
        block = tl.load(table + n // BLOCK_SIZE).to(tl.int64)
    offset = block * block_stride + (n % BLOCK_SIZE) * token_stride + head_offset
    k_at = k_cache_ptr + offset[:, None] + columns[None, :]
    v_at = v_cache_ptr + offset[:, None] + columns[None, :]
    if MASKED:
        inside = (n < end)[:, None] & (columns < HEAD_DIM)[None, :]
        k = tl.load(k_at, mask=inside, other=0.0).to(DTYPE)
        v = tl.load(v_at, mask=inside, other=0.0).to(DTYPE)
    elif HEAD_DIM == BLOCK_D:
        k = tl.load(k_at).to(DTYPE)
        v = tl.load(v_at).to(DTYPE)
    else:
        k = tl.load(k_at, mask=(columns < HEAD_DIM)[None, :], other=0.0).to(DTYPE)
        v = tl.load(v_at, mask=(columns < HEAD_DIM)[None, :], other=0.0).to(DTYPE)
    if UPCAST:
        k = k.to(tl.float32)
        v = v.to(tl.float32)
    scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    if SOFT_CAP:
        scores = soft_cap * (2.0 / (1.0 + tl.exp2(-2.885390081777927 * scale * scores / soft_cap)) - 1.0)
        scores = scores * 1.4426950408889634
    else:
        scores = scores * (scale * 1.4426950408889634)
    if MASKED:
        seen = n[None, :] <= positions[:, None]
        if WINDOW > 0:
            seen &= n[None, :] > positions[:, None] - WINDOW
        # Finite: a row that has seen nothing yet must not subtract infinities.
        scores = tl.where(seen, scores, -1.0e30)
        higher = tl.maximum(best, tl.max(scores, axis=1))
        weights = tl.where(seen, tl.exp2(scores - higher[:, None]), 0.0)
    else:
        higher = tl.maximum(best, tl.max(scores, axis=1))
        weights = tl.exp2(scores - higher[:, None])
    shrink = tl.exp2(best - higher)
    total = total * shrink + tl.sum(weights, axis=1)
    weights = weights.to(DTYPE)
    if UPCAST:
        weights = weights.to(tl.float32)
    sums = sums * shrink[:, None] + tl.dot(weights, v, input_precision=PRECISION)
    return higher, total, sums
