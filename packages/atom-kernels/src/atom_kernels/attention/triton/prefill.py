"""Attention of chunks of prompts over pages in Triton: tiles of query rows against tiles of keys.

Shapes: T tokens, R requests, H query heads, D head_dim; M rows of a tile (tokens x heads of a group), N keys of a tile.
"""

from __future__ import annotations

import triton
import triton.language as tl

from atom_kernels.attention.triton.tile import (
    NOTHING,
    UNSCALED,
    attend_tile,
    head_factors,
    load_block_ids,
    load_queries,
    no_sums,
    row_factors,
    store_log_sums,
    store_rows,
    visible_keys,
)


# What changes from step to step must not make Triton compile again.
@triton.jit(
    do_not_specialize=["num_requests", "table_stride", "table_width"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "block_table_ptr", "sees_until_ptr"],
)
def prefill_kernel(
    q_ptr, k_cache_ptr, v_cache_ptr, key_scale_ptr, value_scale_ptr, sinks_ptr, out_ptr, lse_ptr,
    query_start_loc_ptr, seq_lens_ptr, block_table_ptr, sees_until_ptr,
    scale, cap, q_stride, table_stride, table_width, num_requests,
    NUM_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, ROPE_DIM: tl.constexpr, LATENT: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, BLOCK_STRIDE: tl.constexpr, TOKEN_STRIDE: tl.constexpr, HEAD_STRIDE: tl.constexpr,
    SCALES: tl.constexpr, SCALE_BLOCK_STRIDE: tl.constexpr, SCALE_TOKEN_STRIDE: tl.constexpr,
    SCALE_HEAD_STRIDE: tl.constexpr, UNIT: tl.constexpr, WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_E: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One program a key head and tile of at most `BLOCK_T` tokens of one request, with all of the group's query heads.

    Tiles are numbered through the batch, leaving room for one unfinished tile a request, so that a grid is known from
    the numbers of tokens and requests alone. Those that see the most keys begin first.
    """
    kv_head = tl.program_id(0)
    tile = tl.num_programs(1) - 1 - tl.program_id(1)
    base = tl.load(query_start_loc_ptr)
    # The request of a tile: the last whose first tile is not past it.
    request = -1
    for at in range(0, num_requests, BLOCK_R):
        requests = at + tl.arange(0, BLOCK_R)
        inside = requests < num_requests
        starts = tl.load(query_start_loc_ptr + requests, mask=inside, other=0) - base
        first_tiles = starts // BLOCK_T + requests
        request += tl.sum(((first_tiles <= tile) & inside).to(tl.int32), axis=0)
    start = tl.load(query_start_loc_ptr + request)
    num_queries = tl.load(query_start_loc_ptr + request + 1) - start
    first_query = (tile - (start - base) // BLOCK_T - request) * BLOCK_T
    if first_query < num_queries:
        length = tl.load(seq_lens_ptr + request)
        table = block_table_ptr + request.to(tl.int64) * table_stride
        k_cache_ptr += kv_head * HEAD_STRIDE
        v_cache_ptr += kv_head * HEAD_STRIDE
        if SCALES != UNSCALED:
            key_scale_ptr += kv_head * SCALE_HEAD_STRIDE
            value_scale_ptr += kv_head * SCALE_HEAD_STRIDE
        for_scores, for_values = head_factors(key_scale_ptr, value_scale_ptr, SCALES, UNIT)
        scale *= for_scores
        m = tl.arange(0, BLOCK_M)
        queries = first_query + m // GROUP
        heads = kv_head * GROUP + m % GROUP
        tokens = (start + queries).to(tl.int64)
        present = (queries < num_queries) & (m < BLOCK_T * GROUP)
        q, q_behind = load_queries(
            q_ptr, tokens, heads, present, q_stride, HEAD_DIM, ROPE_DIM, UPCAST, BLOCK_D, BLOCK_E, PARTS, False
        )  # fmt: skip
        first_position = length - num_queries + first_query
        positions = first_position + m // GROUP
        last_seen = positions
        end = tl.minimum(first_position + BLOCK_T, length)
        if sees_until_ptr is not None:
            sees_until = tl.load(sees_until_ptr + tokens, mask=present, other=-1)
            last_seen = tl.maximum(positions, sees_until)
            end = tl.minimum(tl.maximum(end, tl.max(sees_until) + 1), length)
        begin, aligned = visible_keys(num_queries - first_query, length, WINDOW, BLOCK_N)
        best = tl.full([BLOCK_M], NOTHING, tl.float32)
        total = tl.zeros([BLOCK_M], tl.float32)
        sums = no_sums(BLOCK_M, BLOCK_D, PARTS)
        block_ids = load_block_ids(table, aligned, table_width, BLOCK_SIZE, BLOCK_N)
        # Keys up to the first query are seen by all rows, unless there is a window.
        clear = aligned
        if WINDOW == 0:
            clear = tl.maximum(first_position + 1, 0) // BLOCK_N * BLOCK_N
            for at in range(aligned, clear, BLOCK_N):
                next_ids = load_block_ids(table, at + BLOCK_N, table_width, BLOCK_SIZE, BLOCK_N)
                best, total, sums = attend_tile(
                    q, q_behind, k_cache_ptr, v_cache_ptr, key_scale_ptr, value_scale_ptr, block_ids, at, begin, end,
                    positions, last_seen, best, total, sums, scale, cap, HEAD_DIM, ROPE_DIM, LATENT, BLOCK_SIZE,
                    BLOCK_STRIDE, TOKEN_STRIDE, SCALES, SCALE_BLOCK_STRIDE, SCALE_TOKEN_STRIDE, UNIT, WINDOW,
                    SOFT_CAP, PRECISION, UPCAST, False, BLOCK_N, BLOCK_D, BLOCK_E, PARTS, q_ptr.dtype.element_ty,
                )  # fmt: skip
                block_ids = next_ids
        for at in range(clear, end, BLOCK_N):
            next_ids = load_block_ids(table, at + BLOCK_N, table_width, BLOCK_SIZE, BLOCK_N)
            best, total, sums = attend_tile(
                q, q_behind, k_cache_ptr, v_cache_ptr, key_scale_ptr, value_scale_ptr, block_ids, at, begin, end,
                positions, last_seen, best, total, sums, scale, cap, HEAD_DIM, ROPE_DIM, LATENT, BLOCK_SIZE,
                BLOCK_STRIDE, TOKEN_STRIDE, SCALES, SCALE_BLOCK_STRIDE, SCALE_TOKEN_STRIDE, UNIT, WINDOW, SOFT_CAP,
                PRECISION, UPCAST, True, BLOCK_N, BLOCK_D, BLOCK_E, PARTS, q_ptr.dtype.element_ty,
            )  # fmt: skip
            block_ids = next_ids
        store_log_sums(lse_ptr, tokens, heads, best, total, present, NUM_HEADS)
        factors = row_factors(best, total, sinks_ptr, heads, present, for_values)
        rows = out_ptr + tokens * (NUM_HEADS * HEAD_DIM) + heads * HEAD_DIM
        store_rows(rows, sums, factors, present, HEAD_DIM, BLOCK_D, PARTS, False)
